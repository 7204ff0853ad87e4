#include "cpp/cpu/host_memory.h"

#include <string>

#include "cpp/platform/memory.h"
#include "cpp/runtime/error.h"

namespace npusim::cpu {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;

std::byte* aligned(void* address, size_t to) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return reinterpret_cast<std::byte*>((value + to - 1) / to * to);
}

}  // namespace

HostMemory::HostMemory(int64_t bytes, bool huge_pages) : bytes_(bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (size >= kHugePage) {
    pages_bytes_ = size + kHugePage;
    pages_ = platform::take_pages(pages_bytes_);
    if (pages_ != nullptr) data_ = aligned(pages_, kHugePage);
    if (pages_ != nullptr && huge_pages) platform::prefer_huge_pages(data_, size);
  } else {
    const size_t rounded = (size / kAlignment + 1) * kAlignment;
    data_ = static_cast<std::byte*>(platform::take_aligned(kAlignment, rounded));
  }
  if (data_ == nullptr) {
    throw Error(ErrorCode::kDevice, "the cpu has no " + std::to_string(bytes) + " bytes to give");
  }
}

HostMemory::~HostMemory() {
  if (pages_ != nullptr) {
    platform::release_pages(pages_, pages_bytes_);
  } else {
    platform::release_aligned(data_);
  }
}

}  // namespace npusim::cpu
