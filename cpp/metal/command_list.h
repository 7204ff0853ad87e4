// A method made ready for a Metal device: pipelines compiled, arguments laid out in one array that
// bind() patches. A submission is one command buffer with one concurrent encoder, in which barriers
// stand only where the effects of commands ask for them. Where the device allows it, that encoder
// executes indirect commands, which are kept from run to run and encoded anew where an argument
// moved; else, for commands one by one, and where MPS computes some of them, launches are encoded
// directly. MPS opens encoders of its own: ours ends in front of it, and another one begins behind;
// encoders of a command buffer see what those before them wrote. Kernels report failures to memory
// that the host reads when the work has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpp/device_code/kernel_failures.h"
#include "cpp/device_code/kernel_store.h"
#include "cpp/metal/context.h"
#include "cpp/metal/encoding.h"
#include "cpp/metal/image.h"
#include "cpp/metal/indirect_commands.h"
#include "cpp/metal/memory.h"
#include "cpp/metal/mps.h"
#include "cpp/metal/pipelines.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"

namespace npusim::metal {

class MetalCommandList final : public CommandList {
 public:
  // Throws as Device::encode does, as KernelStore and as Pipelines.
  MetalCommandList(std::shared_ptr<const Context> context, std::shared_ptr<const Program> program,
                   const Method& method, KernelStore& store, Pipelines& pipelines);
  ~MetalCommandList() override;

  void bind(uint32_t buffer, const MemoryRange& at) override;
  void submit() override;
  void enqueue(uintptr_t queue) override;
  void settle() override;
  bool can_fail() const noexcept override { return !failing_.empty(); }
  void submit_observed(const std::function<void(size_t)>& after) override;
  void submit_stepwise(const std::function<void(size_t)>& after) override;
  void submit_timed(std::span<double> seconds) override;

 private:
  // A kernel's image, for all commands that have it.
  struct Code {
    Image image;
    std::shared_ptr<const void> owner;            // of the image's bytes
    std::shared_ptr<const Library> library;       // null where there are no launches
    std::unique_ptr<const MpsProducts> products;  // null: the launches compute
  };
  struct Step {
    size_t first_launch, last_launch;
    size_t first_argument, arguments;
    size_t failure;  // the number of its report, or kNone
  };
  struct Bound {
    MemoryRange range{0, 0, 0};
    uint64_t serial = 0;  // of its storage
    bool operator==(const Bound&) const = default;
  };
  static constexpr size_t kNone = KernelFailures::kNone;
  static constexpr uintptr_t kOperandAlignment = 16;  // kernels move 16 bytes at a time

  void parse_images(const std::vector<KernelCode>& codes);
  void load_products(const Command& command, Code& code);
  void load_kernels(const std::vector<KernelCode>& codes, KernelStore& store, Pipelines& pipelines);
  void lay_out();
  void add_launches(const Command& command, const Code& code, size_t first, size_t arguments);
  void reserve();
  void place_arguments(size_t first, size_t last);
  void place_barriers();
  IndirectCommands* indirect();
  void encode(MTL::CommandBuffer& buffer, size_t first, size_t last) const;
  size_t batch_end(size_t first, size_t last) const;
  bool encode_products(std::optional<Encoding>& encoding, MTL::CommandBuffer& buffer,
                       size_t step) const;
  Owned<MTL::CommandBuffer> run(size_t first, size_t last);
  void note(uint64_t number);

  std::shared_ptr<const Context> context_;
  std::shared_ptr<const Program> program_;
  const Method& method_;
  std::vector<Code> codes_;
  std::vector<size_t> code_of_;  // in codes_, by command
  std::vector<Step> steps_;      // by command
  std::vector<Launch> launches_;
  std::vector<Argument> arguments_;
  std::vector<Bound> bound_;       // by buffer
  std::map<Storage*, bool> used_;  // what the arguments lie in, and whether it is written
  Resources resources_;            // the same, for an encoder
  bool moved_ = true;              // the arguments, or the barriers, are not those of all commands
  std::vector<std::unique_ptr<IndirectCommands>> indirect_;  // of all launches
  IndirectCommands* current_ = nullptr;                      // of those that has the arguments
  bool goes_indirect_;                                       // the device can
  size_t batch_ = SIZE_MAX;                                  // most launches of a command buffer
  std::unique_ptr<MetalMemory> scratch_;
  KernelFailures failing_;
  std::unique_ptr<MetalMemory> failures_;  // their reports; null where none can fail
  std::vector<uint64_t> unsettled_;        // numbers of work that nobody has waited for
};

}  // namespace npusim::metal
