// A method made ready for a CUDA device: code loaded, geometry checked, operand pointers laid out
// in one array that bind() patches. The method is replayed as one graph; where a binding changed,
// the graph's launches are given their new arguments first. A method of few launches starts them
// one by one, which takes the host less time. Kernels report failures to memory of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/cuda/captured_work.h"
#include "cpp/cuda/command_timer.h"
#include "cpp/cuda/context.h"
#include "cpp/cuda/exchange.h"
#include "cpp/cuda/graph.h"
#include "cpp/cuda/libraries.h"
#include "cpp/cuda/memory.h"
#include "cpp/cuda/module.h"
#include "cpp/cuda/module_store.h"
#include "cpp/device_code/kernel_failures.h"
#include "cpp/device_code/kernel_store.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"

namespace npusim::cuda {

class CudaCommandList final : public CommandList {
 public:
  // Throws as Device::encode does, as KernelStore and as Module. `seat`: of a program that is split
  // among ranks, whose list this is.
  CudaCommandList(std::shared_ptr<const Context> context, std::shared_ptr<const Program> program,
                  const Method& method, KernelStore& store, ModuleStore& modules,
                  Libraries& libraries, Seat seat = {});
  ~CudaCommandList() override;

  void bind(uint32_t buffer, const MemoryRange& at) override;
  void submit() override;
  void enqueue(uintptr_t queue) override;
  void settle() override;
  bool can_fail() const noexcept override { return !failing_.empty(); }
  void submit_observed(const std::function<void(size_t)>& after) override;
  void submit_stepwise(const std::function<void(size_t)>& after) override;
  void submit_timed(std::span<double> seconds) override;
  std::string implementation(size_t command) const override;

  // For who runs several lists together. enqueue(0) is ready() and then go().
  void ready();  // all that may hold up work which runs meanwhile
  void go();
  // Puts a command on the device's stream; settle() waits for it.
  void put(size_t command);
  // The first command that exchanges values, and its launch; nothing where none does.
  struct Exchanging {
    size_t command;
    KernelLaunch launch;
  };
  std::optional<Exchanging> first_exchange() const;
  // Where a command's first operand is bound to.
  std::byte* first_operand(size_t command) const {
    return arguments_[steps_[command].first_argument];
  }

 private:
  // A command: its launches, and its arguments in arguments_.
  struct Step {
    LibraryCall* library;  // runs instead of the launches; null: there is none
    size_t first_launch, last_launch;
    size_t operands;
    size_t first_argument, arguments;
    size_t first_slot, first_map;
    size_t failure;  // the number of its report, or kNone
    bool moved = false;
  };
  struct Use {
    size_t step;
    size_t argument;  // in arguments_
    int64_t offset;
  };
  // A kernel's image, for all commands that have it.
  struct Code {
    Image image;
    std::shared_ptr<const void> owner;  // of the image's bytes
    std::unique_ptr<LibraryCall> library;
    std::shared_ptr<const Module> module;  // null where the library does the work
    int64_t scratch() const { return library ? library->scratch() : image.scratch; }
    bool reports() const { return image.failure && !library; }
    bool exchanges() const { return image.exchange && !library; }
  };
  static constexpr size_t kNone = KernelFailures::kNone;
  static constexpr uintptr_t kOperandAlignment = 16;  // kernels move 16 bytes at a time

  static std::span<const Matrix> maps_of(const Code& code);
  void parse_images(const std::vector<KernelCode>& codes);
  void load_kernels(const std::vector<KernelCode>& codes, ModuleStore& modules,
                    Libraries& libraries);
  const Code& code_of(const Command& command) const;
  bool check_problem(const Command& command) const;
  void lay_out();
  void check_exchange(const Command& command) const;
  void check_maps(const Command& command, size_t operands) const;
  void resolve_launches();
  void reserve();
  void index_uses();
  void describe(const Step& step, size_t argument);
  void launch(const Step& step);
  void start(StreamHandle queue);
  void launch_all(StreamHandle stream) const;
  void run_library(const Step& step, StreamHandle stream);
  void make_graph();
  CapturedWork captured(const Step& step);
  void refresh_graph();
  void check_failures();

  std::shared_ptr<const Context> context_;
  std::shared_ptr<const Program> program_;
  const Method& method_;
  const Seat seat_;
  std::vector<Code> codes_;
  std::vector<size_t> code_of_;  // in codes_, by command
  std::vector<Step> steps_;      // by command
  std::vector<KernelLaunch> launches_;
  std::vector<std::byte*> arguments_;  // device addresses
  std::vector<TensorMap> maps_;        // of operands, which are arguments too
  std::vector<void*> slots_;           // the address of each argument, as the driver wants it
  std::vector<std::byte*> bound_;      // by buffer
  std::vector<size_t> first_use_;      // in uses_, by buffer; one entry more
  std::vector<Use> uses_;
  std::vector<size_t> moved_;  // steps whose arguments the graph does not have yet
  std::unique_ptr<CudaMemory> scratch_;
  KernelFailures failing_;
  std::unique_ptr<PinnedMemory> failures_;  // their reports; null where none can fail
  bool direct_ = false;                     // starts its launches one by one
  StreamHandle queue_ = nullptr;         // holds work that nobody has waited for; null: none does
  std::unique_ptr<Recorder> recorder_;   // null until a library has work
  std::unique_ptr<Graph> graph_;         // null until the first submission
  std::unique_ptr<CommandTimer> timer_;  // null until asked for, and when an argument has moved
};

}  // namespace npusim::cuda
