#include "cpp/runtime/generate_run.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr int64_t kUnknown = -2;  // no run leaves it
constexpr int kLooks = 1000;      // before another thread may have the processor
constexpr auto kLong = std::chrono::milliseconds(200);

std::atomic_ref<int64_t> seen(const Memory& memory) {
  return std::atomic_ref<int64_t>(*reinterpret_cast<int64_t*>(memory.host()));
}

int64_t look(const Memory& memory) {
  return seen(memory).load(std::memory_order_acquire);
}

}  // namespace

GenerateRuns::GenerateRuns(std::shared_ptr<LanguageModel> model) : model_(std::move(model)) {
  Device& device = *model_->device();
  options_ = device.allocate(sizeof(sampling::Options));
  seed_ = device.allocate(sizeof(uint64_t));
  for (Slot& slot : slots_) {
    slot.memory = device.allocate_watched(sizeof(int64_t));
    slot.is_watched = slot.memory != nullptr;
    if (slot.is_watched) continue;
    slot.memory = device.allocate(sizeof(int64_t));
    device.upload(*slot.memory, 0, std::as_bytes(std::span(&kUnknown, 1)));
  }
}

GenerateRuns::~GenerateRuns() {
  try {
    finish_all();
  } catch (const Error&) {  // the device has failed: nothing runs any more
  }
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
  Slot& next = slot(last_);
  if (next.is_watched) seen(*next.memory).store(kUnknown, std::memory_order_release);
  model_->start_generate(state, *options_, *seed_, *next.memory);
  if (!next.is_watched) next.download = device.start_download(next.memory);
  ++last_;
}

int64_t GenerateRuns::finish() {
  if (started() == 0) throw Error(ErrorCode::kInput, "no run of generate has been started");
  Slot& first = slot(first_++);
  int64_t chosen = kUnknown;
  if (first.is_watched) {
    chosen = watch(first);
  } else {
    const std::unique_ptr<Download> download = std::move(first.download);
    std::memcpy(&chosen, download->wait().data(), sizeof chosen);
  }
  if (chosen < 0) model_->settle_generate();  // says what the kernels met
  return chosen;
}

// Looking at the memory takes less time than asking the driver. That is asked where it takes long,
// since a device that failed writes nothing.
int64_t GenerateRuns::watch(const Slot& slot) {
  const Memory& at = *slot.memory;
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
  return look(at);
}

void GenerateRuns::finish_all() {
  while (started() > 0) finish();
}

}  // namespace npusim
