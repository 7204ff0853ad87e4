// Indirect command buffers of compute commands.
#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::violation;

#define SOFTMETAL_PROPERTY(type, getter, setter, member) \
  -(type)getter {                                        \
    return member;                                       \
  }                                                      \
  -(void)setter : (type)value {                          \
    member = value;                                      \
  }

@interface MTLIndirectCommandBufferDescriptor : NSObject {
 @public
  NSUInteger types_, buffer_count_;
  bool inherits_buffers_, inherits_pipeline_;
}
@end

@implementation MTLIndirectCommandBufferDescriptor
- (id)init {
  inherits_buffers_ = inherits_pipeline_ = true;
  return self;
}
SOFTMETAL_PROPERTY(NSUInteger, commandTypes, setCommandTypes, types_)
SOFTMETAL_PROPERTY(NSUInteger, maxKernelBufferBindCount, setMaxKernelBufferBindCount, buffer_count_)
SOFTMETAL_PROPERTY(bool, inheritBuffers, setInheritBuffers, inherits_buffers_)
SOFTMETAL_PROPERTY(bool, inheritPipelineState, setInheritPipelineState, inherits_pipeline_)
@end

@interface SoftMTLIndirectComputeCommand : NSObject {
 @public
  std::shared_ptr<softmetal::IndirectCommands>* commands_;
  NSUInteger index_;
}
@end

@implementation SoftMTLIndirectComputeCommand
- (void)dealloc {
  delete commands_;
  [super dealloc];
}
- (softmetal::IndirectCommand*)command {
  return &(*commands_)->commands[index_];
}
- (void)setComputePipelineState:(SoftMTLComputePipelineState*)state {
  if ((*commands_)->inherits_pipeline) violation("an indirect command inherits its pipeline");
  if (!(*state->pipeline_)->indirect) {
    violation("the pipeline does not support indirect command buffers");
  }
  [self command]->dispatch.pipeline = *state->pipeline_;
}
- (void)setKernelBuffer:(SoftMTLBuffer*)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  if ((*commands_)->inherits_buffers) violation("an indirect command inherits its buffers");
  if (index >= (*commands_)->buffer_count) {
    violation("index " + std::to_string(index) + " of an indirect command; it has " +
              std::to_string((*commands_)->buffer_count) + " buffers");
  }
  [self command]->dispatch.buffers[index] = softmetal::bound(buffer, offset);
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  if (index >= softmetal::kBufferCount || length % 16 != 0) {
    violation("threadgroup memory comes in multiples of 16 bytes, at an index below 31");
  }
  [self command]->dispatch.threadgroup_lengths[index] = length;
}
- (void)concurrentDispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)group {
  [self command]->dispatch.grid = softmetal::size3(threads);
  [self command]->dispatch.group = softmetal::size3(group);
  [self command]->set = true;
}
- (void)concurrentDispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)group {
  [self concurrentDispatchThreads:{groups.width * group.width, groups.height * group.height,
                                   groups.depth * group.depth}
            threadsPerThreadgroup:group];
}
- (void)setBarrier {
  [self command]->barrier = true;
}
- (void)clearBarrier {
  [self command]->barrier = false;
}
- (void)reset {
  *[self command] = {};
}
@end

@implementation SoftMTLIndirectCommandBuffer
- (id)initWithDevice:(id)device
          descriptor:(MTLIndirectCommandBufferDescriptor*)descriptor
               count:(NSUInteger)count {
  [super initWithDevice:device];
  constexpr NSUInteger kConcurrentDispatch = 1 << 5, kConcurrentDispatchThreads = 1 << 6;
  if ((descriptor->types_ & ~(kConcurrentDispatch | kConcurrentDispatchThreads)) != 0 ||
      descriptor->types_ == 0) {
    violation("an indirect command buffer holds concurrent dispatches here");
  }
  if (descriptor->buffer_count_ > softmetal::kBufferCount) {
    violation("an indirect command has at most 31 buffers");
  }
  auto commands = std::make_shared<softmetal::IndirectCommands>();
  commands->commands.resize(count);
  commands->inherits_buffers = descriptor->inherits_buffers_;
  commands->inherits_pipeline = descriptor->inherits_pipeline_;
  commands->buffer_count = static_cast<unsigned>(descriptor->buffer_count_);
  commands_ = new std::shared_ptr<softmetal::IndirectCommands>(std::move(commands));
  return self;
}
- (void)dealloc {
  delete commands_;
  [super dealloc];
}
- (NSUInteger)size {
  return (*commands_)->commands.size();
}
- (id)indirectComputeCommandAtIndex:(NSUInteger)index {
  if (index >= [self size]) violation("indirectComputeCommandAtIndex: beyond the end");
  SoftMTLIndirectComputeCommand* command = [[SoftMTLIndirectComputeCommand alloc] init];
  command->commands_ = new std::shared_ptr<softmetal::IndirectCommands>(*commands_);
  command->index_ = index;
  return [command autorelease];
}
- (void)resetWithRange:(NSRange)range {
  if (range.location + range.length > [self size]) violation("resetWithRange: beyond the end");
  for (NSUInteger i = 0; i < range.length; ++i) {
    (*commands_)->commands[range.location + i] = {};
  }
}
@end
