// Timestamps: the one counter set, sample buffers, and where a compute pass takes samples.
#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::violation;

@interface SoftMTLCounter : NSObject
@end
@implementation SoftMTLCounter
- (id)name {
  return MTLCommonCounterTimestamp;
}
@end

@interface SoftMTLCounterSet : NSObject
@end
@implementation SoftMTLCounterSet
- (id)name {
  return MTLCommonCounterSetTimestamp;
}
- (id)counters {
  return [NSArray arrayWithObject:[[[SoftMTLCounter alloc] init] autorelease]];
}
@end

@interface SoftMTLDevice (Counters)
@end
@implementation SoftMTLDevice (Counters)
- (id)counterSets {
  return [NSArray arrayWithObject:[[[SoftMTLCounterSet alloc] init] autorelease]];
}
@end

@interface MTLCounterSampleBufferDescriptor : NSObject {
 @public
  id set_;
  NSString* label_;
  NSUInteger count_, storage_;
}
@end
@implementation MTLCounterSampleBufferDescriptor
- (void)dealloc {
  [set_ release];
  [label_ release];
  [super dealloc];
}
- (id)counterSet {
  return set_;
}
- (void)setCounterSet:(id)set {
  softmetal::assign(&set_, set);
}
- (void)setLabel:(NSString*)label {
  softmetal::assign(&label_, label);
}
- (NSUInteger)sampleCount {
  return count_;
}
- (void)setSampleCount:(NSUInteger)count {
  count_ = count;
}
- (NSUInteger)storageMode {
  return storage_;
}
- (void)setStorageMode:(NSUInteger)mode {
  storage_ = mode;
}
@end

namespace softmetal {

Step sample_step(SoftMTLCounterSampleBuffer* samples, NSUInteger index) {
  auto to = *samples->samples_;
  if (index >= to->size()) violation("a sample beyond the end of its buffer");
  return {[to, index] {
    (*to)[index] = now_nanoseconds();
    return Failure{};
  }};
}

}  // namespace softmetal

@implementation SoftMTLCounterSampleBuffer
- (id)initWithDevice:(id)device
          descriptor:(MTLCounterSampleBufferDescriptor*)descriptor
               error:(NSError**)error {
  [super initWithDevice:device];
  if (descriptor->set_ == nil || descriptor->count_ == 0) {
    softmetal::report(error, MTLCounterErrorDomain, 1,
                      "a sample buffer needs a counter set and a count");
    [self release];
    return nil;
  }
  samples_ = new std::shared_ptr<std::vector<std::uint64_t>>(
      std::make_shared<std::vector<std::uint64_t>>(descriptor->count_, ~std::uint64_t{0}));
  return self;
}
- (void)dealloc {
  delete samples_;
  [super dealloc];
}
- (NSUInteger)sampleCount {
  return (*samples_)->size();
}
- (id)resolveCounterRange:(NSRange)range {
  if (range.location + range.length > [self sampleCount]) {
    violation("resolveCounterRange: beyond the end");
  }
  return [[[NSData alloc] initWithBytes:(*samples_)->data() + range.location
                                 length:range.length * 8] autorelease];
}
@end

@interface MTLComputePassSampleBufferAttachmentDescriptor : NSObject {
  id samples_;
  NSUInteger start_, end_;
}
@end
@implementation MTLComputePassSampleBufferAttachmentDescriptor
- (id)init {
  start_ = 0;
  end_ = 1;
  return self;
}
- (void)dealloc {
  [samples_ release];
  [super dealloc];
}
- (id)sampleBuffer {
  return samples_;
}
- (void)setSampleBuffer:(id)samples {
  softmetal::assign(&samples_, samples);
}
- (NSUInteger)startOfEncoderSampleIndex {
  return start_;
}
- (void)setStartOfEncoderSampleIndex:(NSUInteger)index {
  start_ = index;
}
- (NSUInteger)endOfEncoderSampleIndex {
  return end_;
}
- (void)setEndOfEncoderSampleIndex:(NSUInteger)index {
  end_ = index;
}
@end

@interface MTLComputePassSampleBufferAttachmentDescriptorArray : NSObject {
  id first_;
}
@end
@implementation MTLComputePassSampleBufferAttachmentDescriptorArray
- (void)dealloc {
  [first_ release];
  [super dealloc];
}
- (id)objectAtIndexedSubscript:(NSUInteger)index {
  if (index != 0) violation("a compute pass has one sample buffer here");
  if (first_ == nil) first_ = [[MTLComputePassSampleBufferAttachmentDescriptor alloc] init];
  return first_;
}
@end

@interface MTLComputePassDescriptor : NSObject {
  NSUInteger type_;
  id attachments_;
}
@end
@implementation MTLComputePassDescriptor
+ (id)computePassDescriptor {
  return [[[self alloc] init] autorelease];
}
- (id)init {
  attachments_ = [[MTLComputePassSampleBufferAttachmentDescriptorArray alloc] init];
  return self;
}
- (void)dealloc {
  [attachments_ release];
  [super dealloc];
}
- (NSUInteger)dispatchType {
  return type_;
}
- (void)setDispatchType:(NSUInteger)type {
  type_ = type;
}
- (id)sampleBufferAttachments {
  return attachments_;
}
@end
