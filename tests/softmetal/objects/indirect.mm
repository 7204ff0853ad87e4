// Indirect command buffers of compute commands.
#include "engine/counts.h"
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
  NSUInteger types_, buffer_count_, threadgroup_count_;
  bool inherits_buffers_, inherits_pipeline_;
}
@end

@implementation MTLIndirectCommandBufferDescriptor
- (id)init {
  inherits_buffers_ = inherits_pipeline_ = true;
  threadgroup_count_ = softmetal::kBufferCount;
  return self;
}
SOFTMETAL_PROPERTY(NSUInteger, commandTypes, setCommandTypes, types_)
SOFTMETAL_PROPERTY(NSUInteger, maxKernelBufferBindCount, setMaxKernelBufferBindCount, buffer_count_)
SOFTMETAL_PROPERTY(NSUInteger, maxKernelThreadgroupMemoryBindCount,
                   setMaxKernelThreadgroupMemoryBindCount, threadgroup_count_)
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
- (void)checkIdle {
  if ((*commands_)->executions > 0) {
    violation("an indirect command is changed while a command buffer executes it");
  }
}
// A command takes its state, then its dispatch; after that, only to be reset.
- (softmetal::IndirectCommand*)open {
  [self checkIdle];
  if ([self command]->set) violation("an indirect command is encoded anew without a reset");
  return [self command];
}
- (void)setComputePipelineState:(SoftMTLComputePipelineState*)state {
  if ((*commands_)->inherits_pipeline) violation("an indirect command inherits its pipeline");
  if (!(*state->pipeline_)->indirect) {
    violation("the pipeline does not support indirect command buffers");
  }
  [self open]->dispatch.pipeline = *state->pipeline_;
}
- (void)setKernelBuffer:(SoftMTLBuffer*)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  if ((*commands_)->inherits_buffers) violation("an indirect command inherits its buffers");
  if (index >= (*commands_)->buffer_count) {
    violation("index " + std::to_string(index) + " of an indirect command; it has " +
              std::to_string((*commands_)->buffer_count) + " buffers");
  }
  [self open]->dispatch.buffers[index] = softmetal::bound(buffer, offset);
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  if (length % 16 != 0) violation("threadgroup memory comes in multiples of 16 bytes");
  if (index >= (*commands_)->threadgroup_count) {
    violation("threadgroup memory " + std::to_string(index) + " of an indirect command; it has " +
              std::to_string((*commands_)->threadgroup_count));
  }
  [self open]->dispatch.threadgroup_lengths[index] = length;
}
- (void)put:(softmetal::Size3)grid group:(MTLSize)group {
  if (!(*commands_)->inherits_pipeline && [self command]->dispatch.pipeline == nullptr) {
    violation("an indirect command is encoded before its pipeline is set");
  }
  [self open]->dispatch.grid = grid;
  [self command]->dispatch.group = softmetal::size3(group);
  [self command]->set = true;
  softmetal::count(softmetal::Count::kIndirectCommands);
}
- (void)concurrentDispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)group {
  if (!(*commands_)->takes_threads) violation("concurrentDispatchThreads: is no command type here");
  [self put:softmetal::size3(threads) group:group];
}
- (void)concurrentDispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)group {
  if (!(*commands_)->takes_groups) {
    violation("concurrentDispatchThreadgroups: is no command type here");
  }
  [self put:{groups.width * group.width, groups.height * group.height, groups.depth * group.depth}
      group:group];
}
- (void)setBarrier {
  [self open]->barrier = true;
}
- (void)clearBarrier {
  [self open]->barrier = false;
}
- (void)reset {
  [self checkIdle];
  *[self command] = {};
}
@end

@implementation SoftMTLIndirectCommandBuffer
- (id)initWithDevice:(id)device
          descriptor:(MTLIndirectCommandBufferDescriptor*)descriptor
               count:(NSUInteger)count
           isPrivate:(bool)is_private {
  [super initWithDevice:device];
  constexpr NSUInteger kConcurrentDispatch = 1 << 5, kConcurrentDispatchThreads = 1 << 6;
  if ((descriptor->types_ & ~(kConcurrentDispatch | kConcurrentDispatchThreads)) != 0 ||
      descriptor->types_ == 0) {
    violation("an indirect command buffer holds concurrent dispatches here");
  }
  if (descriptor->buffer_count_ > softmetal::kBufferCount ||
      descriptor->threadgroup_count_ > softmetal::kBufferCount) {
    violation("an indirect command has at most 31 buffers");
  }
  auto commands = std::make_shared<softmetal::IndirectCommands>();
  commands->commands.resize(count);
  commands->inherits_buffers = descriptor->inherits_buffers_;
  commands->inherits_pipeline = descriptor->inherits_pipeline_;
  commands->buffer_count = static_cast<unsigned>(descriptor->buffer_count_);
  commands->threadgroup_count = static_cast<unsigned>(descriptor->threadgroup_count_);
  commands->takes_groups = (descriptor->types_ & kConcurrentDispatch) != 0;
  commands->takes_threads = (descriptor->types_ & kConcurrentDispatchThreads) != 0;
  commands->is_private = is_private;
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
  if ((*commands_)->is_private) {
    violation("indirectComputeCommandAtIndex: of private storage, which the host does not reach");
  }
  SoftMTLIndirectComputeCommand* command = [[SoftMTLIndirectComputeCommand alloc] init];
  command->commands_ = new std::shared_ptr<softmetal::IndirectCommands>(*commands_);
  command->index_ = index;
  return [command autorelease];
}
- (void)resetWithRange:(NSRange)range {
  if (range.location > [self size] || range.length > [self size] - range.location) {
    violation("resetWithRange: beyond the end");
  }
  if ((*commands_)->executions > 0) {
    violation("resetWithRange: while a command buffer executes the commands");
  }
  for (NSUInteger i = 0; i < range.length; ++i) {
    (*commands_)->commands[range.location + i] = {};
  }
}
@end
