#include "cpp/metal/context.h"

#include <charconv>

#include "cpp/metal/mps.h"
#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr int kNewestFamily = 10;
constexpr int kOldestIndirect = 9;
constexpr int kAppleFamilies = 1000;  // MTLGPUFamilyApple1 is 1001

Owned<MTL::Device> device_at(int64_t ordinal) {
  const Pool pool;
  const Owned<NS::Array> all = NS::TransferPtr(MTL::CopyAllDevices());
  const auto count = all ? static_cast<int64_t>(all->count()) : 0;
  if (ordinal >= 0 && ordinal < count) {
    return NS::RetainPtr(all->object<MTL::Device>(static_cast<NS::UInteger>(ordinal)));
  }
  throw Error(ErrorCode::kDevice, "there is no Metal device " + std::to_string(ordinal) +
                                      "; this machine has " + std::to_string(count) +
                                      ", numbered from 0");
}

}  // namespace

Context::Context(int64_t ordinal, IndirectUse indirect)
    : device_(device_at(ordinal)), queue_(*device_.get()), ordinal_(static_cast<int>(ordinal)) {
  const Pool pool;
  name_ = text_of(device_->name());
  for (int family = 1; family <= kNewestFamily; ++family) {
    if (device_->supportsFamily(static_cast<MTL::GPUFamily>(kAppleFamilies + family))) {
      family_ = family;
    }
  }
  indirect_ = indirect == IndirectUse::kOn ||
              (indirect == IndirectUse::kAuto && family_ >= kOldestIndirect);
  has_mps_ = metal::has_mps(device_.get());
  most_threadgroup_memory_ = static_cast<int64_t>(device_->maxThreadgroupMemoryLength());
  total_memory_ = static_cast<int64_t>(device_->recommendedMaxWorkingSetSize());
}

bool Context::runs(std::string_view arch) const noexcept {
  constexpr std::string_view kApple = "apple";
  if (!arch.starts_with(kApple)) return false;
  const char *begin = arch.data() + kApple.size(), *end = arch.data() + arch.size();
  int family = 0;
  const auto [rest, failure] = std::from_chars(begin, end, family);
  return failure == std::errc() && rest == end && family > 0 && family <= family_;
}

void Context::finish(uint64_t number) const {
  queue_.wait(number);
  const std::string failure = queue_.failure(number);
  if (failure.empty()) return;
  throw Error(ErrorCode::kDevice,
              "the Metal device " + name_ + " could not finish the work: " + failure);
}

}  // namespace npusim::metal
