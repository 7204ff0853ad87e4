// Buffers, events, fences.
#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::violation;

namespace softmetal {

bool is_private(SoftMTLBuffer* buffer) {
  return (buffer->options_ >> 4 & 15) == 2;
}

Bound bound(SoftMTLBuffer* buffer, NSUInteger offset) {
  return buffer == nil ? Bound{} : Bound{*buffer->memory_, offset};
}

}  // namespace softmetal

@implementation SoftMTLBuffer
- (void)dealloc {
  (*memory_)->released = true;
  void* address = (*memory_)->data();
  const NSUInteger length = (*memory_)->bytes();
  delete memory_;
  if (deallocator_ != nullptr) {
    deallocator_(address, length);
    Block_release(deallocator_);
  }
  [heap_ release];
  [super dealloc];
}
- (void*)contents {
  return softmetal::is_private(self) ? nullptr : (*memory_)->data();
}
- (NSUInteger)length {
  return (*memory_)->bytes();
}
- (NSUInteger)allocatedSize {
  return (*memory_)->bytes();
}
- (std::uint64_t)gpuAddress {
  return reinterpret_cast<std::uint64_t>((*memory_)->data());
}
- (NSUInteger)storageMode {
  return options_ >> 4 & 15;
}
- (NSUInteger)cpuCacheMode {
  return options_ & 15;
}
- (NSUInteger)hazardTrackingMode {
  return options_ >> 8 & 3;
}
- (NSUInteger)resourceOptions {
  return options_;
}
- (id)heap {
  return heap_;
}
- (void)setLabel:(NSString*)label {
  [super setLabel:label];
  (*memory_)->label = softmetal::text(label);
}
- (void)didModifyRange:(NSRange)range {
  (void)range;
  violation("didModifyRange: is for managed storage");
}
@end

@implementation SoftMTLFence
@end

@implementation SoftMTLEvent
- (id)initWithDevice:(id)device {
  state_ = new std::shared_ptr<softmetal::EventState>(std::make_shared<softmetal::EventState>());
  return [super initWithDevice:device];
}
- (void)dealloc {
  delete state_;
  [super dealloc];
}
@end

@interface MTLSharedEventListener : NSObject
@end
@implementation MTLSharedEventListener
- (id)initWithDispatchQueue:(void*)queue {
  (void)queue;
  return self;
}
@end

@implementation SoftMTLSharedEvent
- (std::uint64_t)signaledValue {
  return (*state_)->value();
}
- (void)setSignaledValue:(std::uint64_t)value {
  (*state_)->set(value);
}
- (bool)waitUntilSignaledValue:(std::uint64_t)value timeoutMS:(std::uint64_t)milliseconds {
  // UINT64_MAX is "for ever"; a century is as long.
  const double seconds = static_cast<double>(milliseconds) * 1e-3;
  return (*state_)->wait(value, seconds < 3e9 ? seconds : 3e9);
}
- (void)notifyListener:(id)listener
               atValue:(std::uint64_t)value
                 block:(void (^)(id, std::uint64_t))block {
  (void)listener;
  void (^kept)(id, std::uint64_t) = Block_copy(block);
  [self retain];
  (*state_)->notify(value, [self, kept](std::uint64_t reached) {
    kept(self, reached);
    Block_release(kept);
    [self release];
  });
}
@end
