// The compute encoder: what is bound, dispatches, barriers. Dispatches of a serial encoder are each
// a step of their own; those of a concurrent one that no barrier parts are one step.
#include <cstring>

#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::kBufferCount;
using softmetal::violation;

namespace softmetal {

Size3 size3(MTLSize size) {
  return {size.width, size.height, size.depth};
}

namespace {

// A command of an indirect command buffer as a dispatch, with what it inherits.
Dispatch inherited(const IndirectCommands& from, const IndirectCommand& command, const Item& item) {
  Dispatch dispatch = command.dispatch;
  if (from.inherits_pipeline) dispatch.pipeline = item.dispatch.pipeline;
  if (from.inherits_buffers) dispatch.buffers = item.dispatch.buffers;
  if (dispatch.pipeline == nullptr) violation("an indirect command without a pipeline");
  if (!dispatch.pipeline->indirect) {
    violation("kernel " + std::string(dispatch.pipeline->kernel->name) +
              ": its pipeline does not support indirect command buffers");
  }
  for (const Bound& bound : command.dispatch.buffers) {
    if (bound && item.used.count(bound.memory.get()) == 0) {
      violation("kernel " + std::string(dispatch.pipeline->kernel->name) +
                ": an indirect command uses a buffer that useResource: has not named");
    }
  }
  if (const std::string wrong = check_dispatch(dispatch); !wrong.empty()) violation(wrong);
  return dispatch;
}

}  // namespace

Failure run_items(const std::vector<Item>& items) {
  std::vector<Dispatch> open;
  for (const Item& item : items) {
    if (item.indirect == nullptr) {
      open.push_back(item.dispatch);
      continue;
    }
    for (NSUInteger i = item.range.location; i < item.range.location + item.range.length; ++i) {
      const IndirectCommand& command = item.indirect->commands[i];
      if (!command.set) continue;  // reset commands do nothing
      if (command.barrier) {
        if (Failure failure = run_dispatches(open)) return failure;
        open.clear();
      }
      open.push_back(inherited(*item.indirect, command, item));
    }
  }
  return run_dispatches(open);
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
  used_ = new std::set<const softmetal::Allocation*>;
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
  (void)usage;
  if ([resource isKindOfClass:[SoftMTLBuffer class]]) used_->insert(resource->memory_->get());
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
  if (range.location + range.length > (*commands->commands_)->commands.size()) {
    violation("executeCommandsInBuffer: beyond the end of the indirect command buffer");
  }
  segment_->push_back({*next_, *commands->commands_, range, *used_});
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
