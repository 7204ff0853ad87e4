#include "cpp/cpu/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>

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

HostMemory::HostMemory(int64_t bytes, [[maybe_unused]] bool huge_pages) : bytes_(bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (size >= kHugePage) {
    // A fresh mapping is zero already and takes memory only where it is touched.
    mapped_ = size + kHugePage;
    void* block =
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block != MAP_FAILED) {
      mapping_ = block;
      data_ = aligned(block, kHugePage);
#if defined(MADV_HUGEPAGE)
      if (huge_pages) madvise(data_, size, MADV_HUGEPAGE);
#endif
    }
  } else {
    const size_t rounded = (size / kAlignment + 1) * kAlignment;
    data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    if (data_ != nullptr) std::memset(data_, 0, rounded);
  }
  if (data_ == nullptr) {
    throw Error(ErrorCode::kDevice, "the cpu has no " + std::to_string(bytes) + " bytes to give");
  }
}

HostMemory::~HostMemory() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapped_);
  } else {
    std::free(data_);
  }
}

}  // namespace npusim::cpu
