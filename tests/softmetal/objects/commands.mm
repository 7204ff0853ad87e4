// Command queues and command buffers: one open encoder, committed once, executed by the queue.
#include "engine/counts.h"
#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::CommandList;
using softmetal::violation;

@implementation SoftMTLCommandQueue
- (id)initWithDevice:(id)device {
  queue_ = new std::shared_ptr<softmetal::Queue>(std::make_shared<softmetal::Queue>());
  return [super initWithDevice:device];
}
- (void)dealloc {
  (*queue_)->close();
  delete queue_;
  [super dealloc];
}
- (id)commandBuffer {
  return [[[SoftMTLCommandBuffer alloc] initWithQueue:self retains:true] autorelease];
}
- (id)commandBufferWithUnretainedReferences {
  return [[[SoftMTLCommandBuffer alloc] initWithQueue:self retains:false] autorelease];
}
@end

@interface MTLComputePassDescriptor : NSObject
- (NSUInteger)dispatchType;
- (id)sampleBufferAttachments;
@end
@interface MTLComputePassSampleBufferAttachmentDescriptor : NSObject
- (id)sampleBuffer;
- (NSUInteger)startOfEncoderSampleIndex;
- (NSUInteger)endOfEncoderSampleIndex;
@end
@interface MTLComputePassSampleBufferAttachmentDescriptorArray : NSObject
- (id)objectAtIndexedSubscript:(NSUInteger)index;
@end

@implementation SoftMTLCommandBuffer
- (id)initWithQueue:(SoftMTLCommandQueue*)queue retains:(bool)retains {
  [super initWithDevice:queue->device_];
  queue_ = [queue retain];
  list_ = new std::shared_ptr<CommandList>(std::make_shared<CommandList>());
  retains_ = retains;
  return self;
}
- (void)dealloc {
  if (encoder_ != nil) violation("a command buffer was released with an open encoder");
  [queue_ release];
  [error_ release];
  delete list_;
  [super dealloc];
}
- (id)commandQueue {
  return queue_;
}
- (bool)retainedReferences {
  return retains_;
}
- (NSUInteger)status {
  return (*list_)->status();
}
- (double)GPUStartTime {
  return (*list_)->start;
}
- (double)GPUEndTime {
  return (*list_)->end;
}
- (double)kernelStartTime {
  return (*list_)->start;
}
- (double)kernelEndTime {
  return (*list_)->end;
}
- (id)error {
  const softmetal::Failure failure = (*list_)->failure();
  if (failure && error_ == nil) {
    error_ = [softmetal::error(MTLCommandBufferErrorDomain, failure.code, failure.message) retain];
  }
  return error_;
}
- (void)add:(softmetal::Step)step {
  (*list_)->steps.push_back(std::move(step));
}
- (void)checkOpen:(const char*)what {
  if (committed_) violation(std::string(what) + " after commit");
  if (encoder_ != nil) violation(std::string(what) + " before endEncoding");
}

// --- encoders

- (id)computeCommandEncoderWithDispatchType:(NSUInteger)type {
  [self checkOpen:"a compute encoder"];
  SoftMTLComputeCommandEncoder* encoder =
      [[SoftMTLComputeCommandEncoder alloc] initWithBuffer:self];
  encoder->concurrent_ = type == 1;
  return encoder_ = [encoder autorelease];
}
- (id)computeCommandEncoder {
  return [self computeCommandEncoderWithDispatchType:0];
}
- (id)computeCommandEncoderWithDescriptor:(MTLComputePassDescriptor*)descriptor {
  constexpr NSUInteger kDontSample = ~NSUInteger{0};
  SoftMTLComputeCommandEncoder* encoder =
      [self computeCommandEncoderWithDispatchType:[descriptor dispatchType]];
  MTLComputePassSampleBufferAttachmentDescriptor* attachment =
      [static_cast<MTLComputePassSampleBufferAttachmentDescriptorArray*>(
          [descriptor sampleBufferAttachments]) objectAtIndexedSubscript:0];
  SoftMTLCounterSampleBuffer* samples = [attachment sampleBuffer];
  if (samples == nil) return encoder;
  if ([attachment startOfEncoderSampleIndex] != kDontSample) {
    [self add:softmetal::sample_step(samples, [attachment startOfEncoderSampleIndex])];
  }
  if ([attachment endOfEncoderSampleIndex] != kDontSample) {
    encoder->end_sample_ = [samples retain];
    encoder->end_index_ = [attachment endOfEncoderSampleIndex];
  }
  return encoder;
}
- (id)blitCommandEncoder {
  [self checkOpen:"a blit encoder"];
  return encoder_ = [[[SoftMTLBlitCommandEncoder alloc] initWithBuffer:self] autorelease];
}
- (void)encodeSignalEvent:(SoftMTLEvent*)event value:(std::uint64_t)value {
  [self checkOpen:"encodeSignalEvent:"];
  auto state = *event->state_;
  [self add:{[state, value] {
               state->set(value);
               return softmetal::Failure{};
             },
             true}];
}
- (void)encodeWaitForEvent:(SoftMTLEvent*)event value:(std::uint64_t)value {
  [self checkOpen:"encodeWaitForEvent:"];
  auto state = *event->state_;
  [self add:{[state, value]() -> softmetal::Failure {
               if (state->wait(value, softmetal::settings().timeout_s)) return {};
               return {2, "an event did not reach the value " + std::to_string(value)};
             },
             true}];
}

// --- execution

- (void)addScheduledHandler:(void (^)(id))handler {
  if (committed_) violation("addScheduledHandler: after commit");
  void (^kept)(id) = Block_copy(handler);
  (*list_)->scheduled_handlers.push_back([self, kept] {
    kept(self);
    Block_release(kept);
  });
}
- (void)addCompletedHandler:(void (^)(id))handler {
  if (committed_) violation("addCompletedHandler: after commit");
  void (^kept)(id) = Block_copy(handler);
  (*list_)->completed_handlers.push_back([self, kept] {
    kept(self);
    Block_release(kept);
  });
}
- (void)enqueue {
  if (committed_ || [self status] != CommandList::kNotEnqueued) violation("enqueue comes once");
  (*queue_->queue_)->enqueue(*list_);
}
- (void)commit {
  [self checkOpen:"commit"];
  softmetal::count(softmetal::Count::kCommits);
  committed_ = true;
  NSAutoreleasePool** pool = new NSAutoreleasePool*(nil);
  [self retain];
  (*list_)->begin = [pool] { *pool = [[NSAutoreleasePool alloc] init]; };
  (*list_)->last = [self, pool] {
    [*pool drain];
    delete pool;
    [self release];
  };
  auto list = *list_;
  (*queue_->queue_)->commit(list);
}
- (void)waitUntilScheduled {
  if (!committed_) violation("waitUntilScheduled before commit: it would wait for ever");
  (*list_)->wait_scheduled();
}
- (void)waitUntilCompleted {
  if (!committed_) violation("waitUntilCompleted before commit: it would wait for ever");
  (*list_)->wait_completed();
}
@end
