// One session's runs of a program's method `generate`, which takes the token that it chose last
// from the device itself. So the host may start the run of the next token before it has seen the
// one that it waits for: at most kMost runs are there at a time, in the order of their starts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "cpp/runtime/language_model.h"
#include "cpp/runtime/sampler.h"
#include "cpp/runtime/state.h"

namespace npusim {

// Not thread-safe: a session has its own.
class GenerateRuns {
 public:
  static constexpr size_t kMost = 2;

  // Throws Error(kDevice) when there is no memory. The model has the method.
  explicit GenerateRuns(std::shared_ptr<LanguageModel> model);
  ~GenerateRuns();  // waits for what was started
  GenerateRuns(const GenerateRuns&) = delete;
  GenerateRuns& operator=(const GenerateRuns&) = delete;

  size_t started() const noexcept { return last_ - first_; }
  // Of those started. Throws Error(kInput) when none ever was.
  const DeviceSampling& sampling() const;

  // Starts a run that chooses as `sampling` says. Throws Error(kInput) when kMost are there, and
  // what Executor::run throws.
  void start(State& state, const DeviceSampling& sampling);
  // Waits for the first run that was started; returns what it chose, -1 for no token. Throws
  // Error(kInput) when none was.
  int64_t finish();
  // Waits for all that were started.
  void finish_all();

 private:
  // Where a run leaves what it chose: seen as it is written, or brought to the host after the run.
  struct Slot {
    std::shared_ptr<Memory> memory;
    bool is_watched = false;
    std::unique_ptr<Download> download;  // of the run that is there; null where it is watched
  };
  Slot& slot(size_t run) { return slots_[run % kMost]; }
  int64_t watch(const Slot& slot);

  std::shared_ptr<LanguageModel> model_;
  std::shared_ptr<Memory> options_, seed_;
  std::array<Slot, kMost> slots_;
  std::optional<DeviceSampling> sampling_;  // what options_ and seed_ hold
  size_t first_ = 0, last_ = 0;             // runs that are there
};

}  // namespace npusim
