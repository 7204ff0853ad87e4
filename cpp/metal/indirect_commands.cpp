#include "cpp/metal/indirect_commands.h"

#include <algorithm>

namespace npusim::metal {
namespace {

constexpr NS::UInteger kMostExecuted = 16384;  // commands of one range

std::span<const Argument> arguments_of(const Launch& launch, std::span<const Argument> all) {
  return all.subspan(launch.first_argument, launch.arguments);
}

void use(MTL::ComputeCommandEncoder& encoder, const std::vector<MTL::Resource*>& resources,
         MTL::ResourceUsage usage, std::vector<Owned<MTL::Resource>>& kept) {
  if (!resources.empty()) encoder.useResources(resources.data(), resources.size(), usage);
  for (MTL::Resource* resource : resources) kept.push_back(NS::RetainPtr(resource));
}

}  // namespace

std::unique_ptr<IndirectCommands> IndirectCommands::make(const Context& context,
                                                         std::span<const Launch> launches) {
  const Pool pool;
  size_t arguments = 0;
  bool shared = false;
  for (const Launch& launch : launches) {
    if (!launch.pipeline->supportIndirectCommandBuffers()) return nullptr;
    arguments = std::max(arguments, launch.arguments);
    shared = shared || launch.shared > 0;
  }
  auto descriptor = NS::TransferPtr(MTL::IndirectCommandBufferDescriptor::alloc()->init());
  descriptor->setCommandTypes(MTL::IndirectCommandTypeConcurrentDispatch);
  descriptor->setInheritBuffers(false);
  descriptor->setInheritPipelineState(false);
  descriptor->setMaxKernelBufferBindCount(arguments);
  descriptor->setMaxKernelThreadgroupMemoryBindCount(shared ? 1 : 0);
  auto commands = NS::TransferPtr(context.device().newIndirectCommandBuffer(
      descriptor.get(), launches.size(), MTL::ResourceStorageModeShared));
  if (!commands) return nullptr;
  return std::unique_ptr<IndirectCommands>(new IndirectCommands(std::move(commands)));
}

bool IndirectCommands::holds(size_t index, const Launch& launch,
                             std::span<const Argument> arguments) const {
  return barriers_[index] == launch.barrier &&
         std::ranges::equal(arguments_of(launch, arguments_), arguments_of(launch, arguments));
}

bool IndirectCommands::holds(std::span<const Launch> launches,
                             std::span<const Argument> arguments) const {
  if (barriers_.size() != launches.size()) return false;
  for (size_t i = 0; i < launches.size(); ++i) {
    if (!holds(i, launches[i], arguments)) return false;
  }
  return true;
}

void IndirectCommands::encode(std::span<const Launch> launches,
                              std::span<const Argument> arguments) {
  const bool fresh = barriers_.empty();
  for (size_t i = 0; i < launches.size(); ++i) {
    if (!fresh && holds(i, launches[i], arguments)) continue;
    encode(i, launches[i], arguments_of(launches[i], arguments));
  }
  arguments_.assign(arguments.begin(), arguments.end());
  barriers_.resize(launches.size());
  for (size_t i = 0; i < launches.size(); ++i) barriers_[i] = launches[i].barrier;
}

void IndirectCommands::encode(size_t index, const Launch& launch,
                              std::span<const Argument> arguments) {
  MTL::IndirectComputeCommand& command = *commands_->indirectComputeCommand(index);
  command.reset();
  command.setComputePipelineState(launch.pipeline);
  for (size_t i = 0; i < arguments.size(); ++i) {
    command.setKernelBuffer(arguments[i].buffer, arguments[i].offset, i);
  }
  if (launch.shared > 0) command.setThreadgroupMemoryLength(launch.shared, 0);
  if (launch.barrier) command.setBarrier();
  command.concurrentDispatchThreadgroups(launch.grid, launch.block);
}

// What a range has to wait for in those before it, its own barriers are not said to reach.
std::vector<Owned<MTL::Resource>> IndirectCommands::execute(Encoding& encoding,
                                                            const Resources& resources) const {
  std::vector<Owned<MTL::Resource>> kept;
  kept.reserve(resources.read.size() + resources.written.size());
  MTL::ComputeCommandEncoder& encoder = encoding.encoder();
  use(encoder, resources.read, MTL::ResourceUsageRead, kept);
  use(encoder, resources.written, MTL::ResourceUsageRead | MTL::ResourceUsageWrite, kept);
  for (NS::UInteger first = 0; first < barriers_.size(); first += kMostExecuted) {
    if (first > 0) encoding.barrier();
    const NS::UInteger count = std::min<NS::UInteger>(kMostExecuted, barriers_.size() - first);
    encoder.executeCommandsInBuffer(commands_.get(), NS::Range(first, count));
  }
  return kept;
}

}  // namespace npusim::metal
