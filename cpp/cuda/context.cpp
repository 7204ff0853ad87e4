#include "cpp/cuda/context.h"

#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr int kOldestOverlap = 9;  // compute capability's major number

bool is_switched_off(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "0") == 0;
}

const Driver& driver_with_device(int ordinal) {
  const Driver& driver = cuda::driver();
  int devices = 0;
  driver.check(driver.device_get_count(&devices), "count its devices");
  if (ordinal >= 0 && ordinal < devices) return driver;
  throw Error(ErrorCode::kDevice, "there is no CUDA device " + std::to_string(ordinal) +
                                      "; this machine has " + std::to_string(devices) +
                                      ", numbered from 0");
}

}  // namespace

Context::Context(int ordinal) : driver_(driver_with_device(ordinal)), ordinal_(ordinal) {
  driver_.check(driver_.device_get(&device_, ordinal), "open the device");
  char name[256] = {};
  driver_.check(driver_.device_get_name(name, sizeof name - 1, device_), "name the device");
  name_ = name;
  major_ = attribute(kComputeMajor);
  minor_ = attribute(kComputeMinor);
  most_shared_memory_ = attribute(kMostSharedMemory);
  overlaps_ = major_ >= kOldestOverlap && driver_.graph_add_dependencies != nullptr &&
              !is_switched_off("NPUSIM_CUDA_DEPENDENT_LAUNCH");
  size_t bytes = 0;
  driver_.check(driver_.device_total_mem(&bytes, device_), "tell the device's memory");
  total_memory_ = static_cast<int64_t>(bytes);
  driver_.check(driver_.primary_ctx_retain(&handle_, device_), "open the device");
  const Result made = [&] {
    const Current current(*this);
    open_pool();
    const Result streamed = driver_.stream_create(&stream_, kStreamNonBlocking);
    return streamed == kSuccess ? driver_.event_create(&passed_, kEventWithoutTiming) : streamed;
  }();
  if (made != kSuccess) {
    if (stream_ != nullptr) driver_.stream_destroy(stream_);
    if (pool_ != nullptr) driver_.pool_destroy(pool_);
    driver_.primary_ctx_release(device_);
  }
  driver_.check(made, "make a stream");
}

Context::~Context() {
  {
    const Current current(*this);
    driver_.stream_synchronize(stream_);
    driver_.event_destroy(passed_);
    driver_.stream_destroy(stream_);
    if (pool_ != nullptr) driver_.pool_destroy(pool_);
  }
  driver_.primary_ctx_release(device_);
}

int Context::attribute(int attribute) const {
  int value = 0;
  driver_.check(driver_.device_get_attribute(&value, attribute, device_),
                "tell what the device can do");
  return value;
}

// A pool of its own, which keeps what is freed: other users of the device keep their settings.
void Context::open_pool() {
  if (attribute(kHasMemoryPools) == 0) return;
  const PoolProps props{.location_id = ordinal_};
  if (driver_.pool_create(&pool_, &props) != kSuccess) {
    pool_ = nullptr;
    return;
  }
  uint64_t everything = UINT64_MAX;
  driver_.pool_set_attribute(pool_, kReleaseThreshold, &everything);
}

bool Context::reaches(const Context& other) const {
  if (other.device_ == device_) return true;
  int can = 0;
  if (driver_.device_can_access_peer(&can, device_, other.device_) != kSuccess || can == 0) {
    return false;
  }
  const Current current(*this);
  const Result enabled = driver_.ctx_enable_peer_access(other.handle_, 0);
  return enabled == kSuccess || enabled == kPeerAccessAlready;
}

void Context::synchronize() const {
  driver_.check(driver_.stream_synchronize(stream_), "finish the work on the device");
}

void Context::order(StreamHandle before, StreamHandle after) const {
  const std::lock_guard<ForkSafeMutex> locked(ordering_);
  const Result recorded = driver_.event_record(passed_, before);
  driver_.check(recorded == kSuccess ? driver_.stream_wait_event(after, passed_, 0) : recorded,
                "have one stream wait for another");
}

Current::Current(const Context& context) : driver_(context.driver_), entered_(false) {
  ContextHandle now = nullptr;
  if (driver_.ctx_get_current(&now) == kSuccess && now == context.handle_) return;
  entered_ = driver_.ctx_push(context.handle_) == kSuccess;
}

Current::~Current() {
  ContextHandle ignored = nullptr;
  if (entered_) driver_.ctx_pop(&ignored);
}

}  // namespace npusim::cuda
