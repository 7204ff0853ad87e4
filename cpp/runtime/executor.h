// Runs a program's methods on a device. See executor.cpp for the invariants.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"
#include "cpp/runtime/state.h"
#include "cpp/runtime/turn.h"
#include "cpp/runtime/weights.h"

namespace npusim {

// Device memory that a caller lends for one run.
using Binding = MemoryRange;

class Executor {
 public:
  // Encodes all methods and allocates all memory that runs need, but for the executor's own state:
  // the first run without one allocates it. Throws as Device::encode and admit do.
  Executor(std::shared_ptr<const Program> program, std::shared_ptr<Device> device);

  const Program& program() const noexcept { return *program_; }
  std::shared_ptr<const Program> shared_program() const noexcept { return program_; }
  Device& device() const noexcept { return *device_; }
  std::shared_ptr<Device> shared_device() const noexcept { return device_; }

  // Index of a method by name; the first one for an empty name. Throws Error(kInput).
  size_t method_index(std::string_view name) const;

  // Whatever takes a method's index throws Error(kInput) when there is no such method.

  // Runs a method: `inputs` and `outputs` in the order of its specs, each at least as long as its
  // buffer. An output may lie where an input lies, an input may be passed twice; outputs may not
  // overlap each other. `weights` may be null when the program has none. The run reads and changes
  // `state`, or the executor's own when it is null. `sizes` are the values of the method's symbols
  // (sized_program.h), which tell how long its buffers are; none mean the greatest.
  // The first run at some sizes encodes the method for them, and allocates; a few are kept.
  //
  // Throws Error(kInput) for wrong bindings or sizes, Error(kWeights) for weights of another
  // program or device, Error(kBusy) when the executor is running already, Error(kData) from the
  // kernels.
  void run(size_t method, std::span<const Binding> inputs, std::span<const Binding> outputs,
           const Weights* weights, State* state = nullptr, std::span<const int64_t> sizes = {});

  // Makes a method ready for some sizes, as a run does that finds them new, and returns the program
  // whose only method it is there: its specs have the shapes of the call. Throws as run.
  std::shared_ptr<const Program> prepare(size_t method, std::span<const int64_t> sizes);

  // As run, but returns when the work is in `queue` (see StreamDevice; 0: the device's own): what
  // is put there later finds the results, and the caller keeps inputs and outputs until it is done.
  // Runs of one executor follow each other, whatever their queues. settle() waits for the latest
  // run of a method and throws what run would have thrown; a method that cannot fail needs it only
  // for waiting.
  void enqueue(size_t method, std::span<const Binding> inputs, std::span<const Binding> outputs,
               const Weights* weights, State* state, uintptr_t queue,
               std::span<const int64_t> sizes = {});
  void settle(size_t method);
  bool can_fail(size_t method) const;

  // As run, one command at a time, calling `after(index)` after each: for profiles and taps.
  void observe(size_t method, std::span<const Binding> inputs, std::span<const Binding> outputs,
               const Weights* weights, const std::function<void(size_t)>& after,
               State* state = nullptr, std::span<const int64_t> sizes = {});

  // As run, one command at a time, and writes how long each took, in seconds: `seconds` holds one
  // number a command of the method, else Error(kInput).
  void time(size_t method, std::span<const Binding> inputs, std::span<const Binding> outputs,
            const Weights* weights, std::span<double> seconds, State* state = nullptr,
            std::span<const int64_t> sizes = {});

  // Who computes each command of a method: see CommandList::implementation.
  std::vector<std::string> implementations(size_t method) const;

  // The state of runs that are given none; null before the first. Replacing it needs one of this
  // program and device. Throws Error(kBusy) while another thread runs the executor.
  std::shared_ptr<State> own_state() const;
  void set_own_state(std::shared_ptr<State> state);

  // Where a buffer lies: within a callback of `observe`, on its thread, as in that run; else only
  // what is the executor's own, as in its latest run, and empty for what the caller lent, which may
  // be gone. Nothing if it has not been bound yet. The content of a kTemp buffer is that of the
  // latest command whose memory it shares. Throws Error(kBusy) while another thread runs the
  // executor.
  std::optional<Binding> buffer(uint32_t index) const;
  // Replaces the first bytes of a buffer that commands write, where `buffer` finds it: from within
  // a callback of `observe`, the commands that follow read them. Throws Error(kInput) for a buffer
  // of another kind, one that has no memory here, or that is smaller.
  void write_buffer(uint32_t index, std::span<const std::byte> bytes);

 private:
  // One method at some sizes, and which buffers to bind to what the caller gives.
  struct Encoded {
    std::unique_ptr<CommandList> list;
    uint64_t weights_bound = 0;  // serial of the weights the list points to
    uint64_t state_bound = 0;    // and of the state
    std::vector<int64_t> sizes = {};
    std::shared_ptr<const Program> sized = nullptr;  // the method alone, at these sizes
    uint64_t used = 0;                               // the run that used it last
  };
  // One method: a single entry for static shapes, for others the greatest sizes and the latest.
  struct Forms {
    std::vector<Encoded> known;
    size_t latest = 0;  // in `known`
    const CommandList& greatest() const { return *known.front().list; }
  };

  // `submit` is given the method's list, with everything bound, and whether outputs are copied to
  // their places after it.
  void check_method(size_t method) const;
  template <typename Submit>
  void start(size_t method, std::span<const Binding> inputs, std::span<const Binding> outputs,
             const Weights* weights, State* state, std::span<const int64_t> sizes,
             const Submit& submit);
  Encoded encode(size_t method, std::span<const int64_t> sizes);
  std::unique_ptr<CommandList> list_for(const Encoded& encoded, size_t method);
  bool owns(uint32_t buffer) const;
  void require_own(const State& state) const;
  Encoded& encoded_at(size_t method, std::span<const int64_t> sizes);
  void bind_weights(Encoded& encoded, const Weights* weights);
  void bind_state(Encoded& encoded, State* state);
  void follow(uintptr_t queue);
  void bind_caller(Encoded& encoded, const Program& program, std::span<const TensorSpec> specs,
                   std::span<const Binding> bindings, const char* what);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Memory> constants_, arena_;
  std::shared_ptr<State> own_state_;            // null until a run asks for it
  std::shared_ptr<const Weights> own_weights_;  // of a program that needs no checkpoint
  std::vector<std::optional<Binding>> places_;  // by buffer: as in the latest run
  std::vector<uint32_t> weight_buffers_;        // kWeight and kPersistent
  std::vector<uint32_t> state_buffers_;
  StreamDevice* streams_;       // of the device; null: it has none
  uintptr_t own_queue_;         // of the device; 0: it has no streams
  uintptr_t queue_;             // what the next run has to be after ends in it
  uint64_t state_shown_ = 0;    // serial of the state that places_ points to
  uint64_t weights_shown_ = 0;  // and of the weights
  std::vector<Forms> methods_;
  uint64_t runs_ = 0;
  mutable TurnFlag running_{0};
  std::atomic<std::thread::id> observer_{};  // the thread that is within a callback of observe
};

}  // namespace npusim
