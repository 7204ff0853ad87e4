#include "cpp/runtime/generate_run.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr int64_t kUnknown = -2;  // no run leaves it
constexpr int kLooks = 1000;      // before another thread may have the processor
constexpr auto kLong = std::chrono::milliseconds(200);

int64_t look(int64_t* at) {
  return std::atomic_ref<int64_t>(*at).load(std::memory_order_acquire);
}

}  // namespace

GenerateRuns::GenerateRuns(std::shared_ptr<LanguageModel> model) : model_(std::move(model)) {
  Device& device = *model_->device();
  options_ = device.allocate(sizeof(sampling::Options));
  seed_ = device.allocate(sizeof(uint64_t));
  for (auto& memory : chosen_) memory = device.allocate_visible(sizeof(int64_t));
}

GenerateRuns::~GenerateRuns() {
  try {
    finish_all();
  } catch (const Error&) {  // the device has failed: nothing runs any more
  }
}

int64_t* GenerateRuns::slot(size_t run) const {
  return reinterpret_cast<int64_t*>(chosen_[run % kMost]->data());
}

const DeviceSampling& GenerateRuns::sampling() const {
  if (!sampling_) throw Error(ErrorCode::kInput, "no run of generate has been started");
  return *sampling_;
}

void GenerateRuns::start(State& state, const DeviceSampling& sampling) {
  if (started() == kMost) {
    throw Error(ErrorCode::kInput,
                "there are " + std::to_string(kMost) + " runs of generate already; finish one");
  }
  Device& device = *model_->device();
  if (!sampling_ || !(*sampling_ == sampling)) {
    sampling_.reset();
    device.upload(*options_, 0, std::as_bytes(std::span(&sampling.options, 1)));
    device.upload(*seed_, 0, std::as_bytes(std::span(&sampling.seed, 1)));
    sampling_ = sampling;
  }
  std::atomic_ref<int64_t>(*slot(last_)).store(kUnknown, std::memory_order_release);
  model_->start_generate(state, *options_, *seed_, *chosen_[last_ % kMost]);
  ++last_;
}

// The device writes the token to memory that the host sees: looking there takes less time than
// asking the driver. It is asked where that takes long, since a device that failed writes nothing.
int64_t GenerateRuns::finish() {
  if (started() == 0) throw Error(ErrorCode::kInput, "no run of generate has been started");
  int64_t* const at = slot(first_++);
  const auto start = std::chrono::steady_clock::now();
  for (int looks = 0; look(at) == kUnknown; ++looks) {
    if (looks % kLooks != kLooks - 1) continue;
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() - start < kLong) continue;
    model_->settle_generate();
    if (look(at) == kUnknown) {
      throw Error(ErrorCode::kDevice, "a run of the method generate has chosen nothing");
    }
  }
  const int64_t chosen = look(at);
  if (chosen < 0) model_->settle_generate();  // says what the kernels met
  return chosen;
}

void GenerateRuns::finish_all() {
  while (started() > 0) finish();
}

}  // namespace npusim
