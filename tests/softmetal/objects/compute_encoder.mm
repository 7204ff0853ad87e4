// The compute encoder: what is bound, dispatches, barriers. Dispatches of a serial encoder are each
// a step of their own; those of a concurrent one that no barrier parts are one step.
#include <algorithm>
#include <cstring>

#include "engine/counts.h"
#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::kBufferCount;
using softmetal::violation;

namespace {
constexpr NSUInteger kMostExecuted = 16384;  // of a GPU of family Mac2
}

namespace softmetal {

Size3 size3(MTLSize size) {
  return {size.width, size.height, size.depth};
}

namespace {

// What an indirect command has of its own is named to the encoder; what kernels take as const is
// said to be read. Of the rest it is seen when it has run whether it was written.
void check_uses(const Dispatch& dispatch, const std::array<Bound, kBufferCount>& own,
                const Uses& used) {
  const Kernel& kernel = *dispatch.pipeline->kernel;
  for (const Bound& bound : own) {
    if (bound && used.count(bound.memory.get()) == 0) {
      violation("kernel " + std::string(kernel.name) +
                ": an indirect command uses a buffer that useResource: has not named");
    }
  }
  for (unsigned i = 0; i < kernel.binding_count; ++i) {
    const Binding& binding = kernel.bindings[i];
    if (binding.space == kThreadgroup || binding.writable || !own[binding.index]) continue;
    if ((used.at(own[binding.index].memory.get()) & kUsageRead) != 0) continue;
    violation("kernel " + std::string(kernel.name) + ": an indirect command reads buffer(" +
              std::to_string(binding.index) + ") '" + binding.name +
              "', for which useResource: has named no such usage");
  }
}

// A command of an indirect command buffer as a dispatch, with what it inherits.
Dispatch inherited(const IndirectCommands& from, const IndirectCommand& command, const Item& item) {
  Dispatch dispatch = command.dispatch;
  if (from.inherits_pipeline) dispatch.pipeline = item.dispatch.pipeline;
  if (from.inherits_buffers) dispatch.buffers = item.dispatch.buffers;
  // It is not said that who executes indirect commands keeps what they name.
  dispatch.needs_owners = item.dispatch.needs_owners || !from.inherits_buffers;
  if (dispatch.pipeline == nullptr) violation("an indirect command without a pipeline");
  if (!dispatch.pipeline->indirect) {
    violation("kernel " + std::string(dispatch.pipeline->kernel->name) +
              ": its pipeline does not support indirect command buffers");
  }
  check_uses(dispatch, command.dispatch.buffers, item.used);
  if (const std::string wrong = check_dispatch(dispatch); !wrong.empty()) violation(wrong);
  return dispatch;
}

}  // namespace

std::shared_ptr<IndirectCommands> executed(const std::shared_ptr<IndirectCommands>& commands) {
  ++commands->executions;
  return {commands.get(), [commands](IndirectCommands* counted) { --counted->executions; }};
}

namespace {

// Memory that indirect commands could write and are said to read alone, as it was before them. Not
// the host's pages: it may change them meanwhile.
class ReadAlone {
 public:
  void add(const Dispatch& dispatch, const Uses& used) {
    for (unsigned i = 0; i < dispatch.pipeline->kernel->binding_count; ++i) {
      const Binding& binding = dispatch.pipeline->kernel->bindings[i];
      if (binding.space == kThreadgroup || !binding.writable) continue;
      const std::shared_ptr<Allocation>& memory = dispatch.buffers[binding.index].memory;
      const auto use = used.find(memory.get());
      if (use == used.end() || (use->second & kUsageWrite) != 0 || before_.count(memory) != 0 ||
          memory->is_of_host()) {
        continue;
      }
      before_[memory].assign(memory->data(), memory->data() + memory->bytes());
    }
  }
  void check() const {
    for (const auto& [memory, before] : before_) {
      if (std::memcmp(memory->data(), before.data(), before.size()) == 0) continue;
      violation("an indirect command has written a buffer" +
                (memory->label.empty() ? "" : " '" + memory->label + "'") + " of " +
                std::to_string(before.size()) +
                " bytes, for which useResource: has named no such usage");
    }
  }

 private:
  std::map<std::shared_ptr<Allocation>, std::vector<unsigned char>> before_;
};

// Commands of a range as dispatches; each with whether it has a barrier.
std::vector<std::pair<Dispatch, bool>> commands_of(const Item& item) {
  std::vector<std::pair<Dispatch, bool>> commands;
  for (NSUInteger i = 0; i < item.range.length; ++i) {
    const IndirectCommand& command = item.indirect->commands[item.range.location + i];
    if (!command.set) continue;  // reset commands do nothing
    commands.emplace_back(inherited(*item.indirect, command, item), command.barrier);
  }
  return commands;
}

}  // namespace

// A command's barrier is said to wait for commands executed before it: here for those of its range,
// and in the forward order, which hurts nobody, for all.
Failure run_items(const std::vector<Item>& items) {
  std::vector<Dispatch> open;
  ReadAlone read;
  const bool all_indirect = std::all_of(items.begin(), items.end(),
                                        [](const Item& item) { return item.indirect != nullptr; });
  for (const Item& item : items) {
    if (item.indirect == nullptr) {
      open.push_back(item.dispatch);
      continue;
    }
    const auto own =
        static_cast<std::ptrdiff_t>(settings().order == Order::kForward ? 0 : open.size());
    const auto commands = commands_of(item);
    for (const auto& [dispatch, barrier] : commands) {
      if (all_indirect) read.add(dispatch, item.used);
    }
    for (const auto& [dispatch, barrier] : commands) {
      if (barrier) {
        const std::vector<Dispatch> before(open.begin() + own, open.end());
        if (Failure failure = run_dispatches(before)) return failure;
        open.erase(open.begin() + own, open.end());
      }
      open.push_back(dispatch);
    }
  }
  if (Failure failure = run_dispatches(open)) return failure;
  read.check();
  return {};
}

}  // namespace softmetal

@implementation SoftMTLCommandEncoder
- (id)initWithBuffer:(SoftMTLCommandBuffer*)buffer {
  [super initWithDevice:buffer->device_];
  buffer_ = [buffer retain];
  return self;
}
- (void)dealloc {
  if (!ended_) violation("an encoder was released before endEncoding");
  [buffer_ release];
  [super dealloc];
}
- (void)checkOpen {
  if (ended_) violation("encoding after endEncoding");
}
- (void)finish {
}
- (void)endEncoding {
  if (ended_) violation("endEncoding twice");
  [self finish];
  ended_ = true;
  buffer_->encoder_ = nil;
}
- (void)insertDebugSignpost:(NSString*)text {
  (void)text;
}
- (void)pushDebugGroup:(NSString*)text {
  (void)text;
}
- (void)popDebugGroup {
}
// Encoders run one after another here, so a fence waits for nothing.
- (void)updateFence:(SoftMTLFence*)fence {
  [self checkOpen];
  (void)fence;
}
- (void)waitForFence:(SoftMTLFence*)fence {
  [self checkOpen];
  (void)fence;
}
@end

@implementation SoftMTLComputeCommandEncoder
- (id)initWithBuffer:(SoftMTLCommandBuffer*)buffer {
  next_ = new softmetal::Dispatch;
  next_->needs_owners = !buffer->retains_;
  segment_ = new std::vector<softmetal::Item>;
  used_ = new softmetal::Uses;
  return [super initWithBuffer:buffer];
}
- (void)dealloc {
  delete next_;
  delete segment_;
  delete used_;
  [end_sample_ release];
  [super dealloc];
}
- (NSUInteger)dispatchType {
  return concurrent_ ? 1 : 0;
}
- (void)flush {
  if (segment_->empty()) return;
  [buffer_ add:{[items = std::exchange(*segment_, {})] { return softmetal::run_items(items); }}];
}
- (void)finish {
  [self flush];
  if (end_sample_ != nil) [buffer_ add:softmetal::sample_step(end_sample_, end_index_)];
}

// --- binding

- (void)checkIndex:(NSUInteger)index {
  [self checkOpen];
  if (index >= kBufferCount) {
    violation("index " + std::to_string(index) + ": there are " + std::to_string(kBufferCount) +
              " buffers");
  }
}
- (void)setComputePipelineState:(SoftMTLComputePipelineState*)state {
  [self checkOpen];
  if (state == nil) violation("setComputePipelineState: of nil");
  next_->pipeline = *state->pipeline_;
}
- (void)setBuffer:(SoftMTLBuffer*)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  [self checkIndex:index];
  next_->buffers[index] = softmetal::bound(buffer, offset);
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
  [self checkIndex:index];
  if (!next_->buffers[index]) violation("setBufferOffset: where no buffer is bound");
  next_->buffers[index].offset = offset;
}
- (void)setBuffers:(SoftMTLBuffer* const*)buffers
           offsets:(const NSUInteger*)offsets
         withRange:(NSRange)range {
  for (NSUInteger i = 0; i < range.length; ++i) {
    [self setBuffer:buffers[i] offset:offsets[i] atIndex:range.location + i];
  }
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  [self checkIndex:index];
  if (length == 0 || length > 4096) {
    violation("setBytes: of " + std::to_string(length) + " bytes; 1 to 4096 are taken");
  }
  auto memory = std::make_shared<softmetal::Allocation>(length, 64);
  std::memcpy(memory->data(), bytes, length);
  next_->buffers[index] = {memory, 0};
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  [self checkIndex:index];
  if (length % 16 != 0) violation("threadgroup memory comes in multiples of 16 bytes");
  next_->threadgroup_lengths[index] = length;
}
- (void)useResource:(SoftMTLBuffer*)resource usage:(NSUInteger)usage {
  [self checkOpen];
  constexpr NSUInteger kAll = softmetal::kUsageRead | softmetal::kUsageWrite;
  if (usage == 0 || (usage & ~kAll) != 0) violation("useResource: for read, write or both");
  if ([resource isKindOfClass:[SoftMTLIndirectCommandBuffer class]]) return;
  if (![resource isKindOfClass:[SoftMTLBuffer class]]) violation("useResource: of no resource");
  (*used_)[resource->memory_->get()] |= usage;
}
- (void)useResources:(SoftMTLBuffer* const*)resources
               count:(NSUInteger)count
               usage:(NSUInteger)usage {
  for (NSUInteger i = 0; i < count; ++i) [self useResource:resources[i] usage:usage];
}

// --- dispatching

- (void)put:(softmetal::Dispatch)dispatch {
  [self checkOpen];
  if (dispatch.pipeline == nullptr) violation("a dispatch without a pipeline");
  if (const std::string wrong = softmetal::check_dispatch(dispatch); !wrong.empty()) {
    violation(wrong);
  }
  softmetal::count(softmetal::Count::kDispatches);
  segment_->push_back({std::move(dispatch), nullptr, {}, {}});
  if (!concurrent_) [self flush];
}
- (void)dispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)group {
  softmetal::Dispatch dispatch = *next_;
  dispatch.grid = softmetal::size3(threads);
  dispatch.group = softmetal::size3(group);
  [self put:std::move(dispatch)];
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)group {
  [self dispatchThreads:{groups.width * group.width, groups.height * group.height,
                         groups.depth * group.depth}
      threadsPerThreadgroup:group];
}
- (void)dispatchThreadgroupsWithIndirectBuffer:(SoftMTLBuffer*)buffer
                          indirectBufferOffset:(NSUInteger)offset
                         threadsPerThreadgroup:(MTLSize)group {
  if (buffer == nil || offset % 4 != 0 || offset + 12 > [buffer length]) {
    violation("a grid is three uint32 in a buffer, at a multiple of 4 bytes");
  }
  softmetal::Dispatch dispatch = *next_;
  dispatch.indirect_groups = softmetal::bound(buffer, offset);
  dispatch.group = softmetal::size3(group);
  [self put:std::move(dispatch)];
}
- (void)executeCommandsInBuffer:(SoftMTLIndirectCommandBuffer*)commands withRange:(NSRange)range {
  [self checkOpen];
  const NSUInteger size = (*commands->commands_)->commands.size();
  if (range.location > size || range.length > size - range.location) {
    violation("executeCommandsInBuffer: beyond the end of the indirect command buffer");
  }
  if (range.length > kMostExecuted) {
    violation("executeCommandsInBuffer: a range of " + std::to_string(range.length) +
              " commands; 16384 are taken");
  }
  softmetal::count(softmetal::Count::kExecutions);
  segment_->push_back({*next_, softmetal::executed(*commands->commands_), range, *used_});
  if (!concurrent_) [self flush];
}

// --- order

- (void)memoryBarrierWithScope:(NSUInteger)scope {
  [self checkOpen];
  (void)scope;
  [self flush];
}
- (void)memoryBarrierWithResources:(const id*)resources count:(NSUInteger)count {
  [self checkOpen];
  (void)resources;
  (void)count;
  [self flush];
}
- (void)sampleCountersInBuffer:(SoftMTLCounterSampleBuffer*)samples
                 atSampleIndex:(NSUInteger)index
                   withBarrier:(bool)barrier {
  [self checkOpen];
  if (!barrier && concurrent_ && !segment_->empty()) {
    violation("a sample between concurrent dispatches needs its barrier");
  }
  [self flush];
  [buffer_ add:softmetal::sample_step(samples, index)];
}
@end
