// The blit encoder: copies, fills, counters, and what it does to indirect command buffers.
#include <cstring>

#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::violation;

namespace {

void check_range(SoftMTLBuffer* buffer, NSUInteger offset, NSUInteger size, const char* what) {
  if (buffer == nil || offset > [buffer length] || size > [buffer length] - offset) {
    violation(std::string(what) + ": bytes " + std::to_string(offset) + " to " +
              std::to_string(offset + size) + " of a buffer of " +
              std::to_string(buffer == nil ? 0 : [buffer length]));
  }
  if (offset % 4 != 0 || size % 4 != 0) {
    violation(std::string(what) + ": offsets and sizes are multiples of 4 bytes");
  }
}

}  // namespace

@implementation SoftMTLBlitCommandEncoder
- (void)copyFromBuffer:(SoftMTLBuffer*)source
          sourceOffset:(NSUInteger)source_offset
              toBuffer:(SoftMTLBuffer*)destination
     destinationOffset:(NSUInteger)destination_offset
                  size:(NSUInteger)size {
  [self checkOpen];
  check_range(source, source_offset, size, "copyFromBuffer:");
  check_range(destination, destination_offset, size, "copyFromBuffer:");
  const NSUInteger distance = source_offset < destination_offset
                                  ? destination_offset - source_offset
                                  : source_offset - destination_offset;
  if (source == destination && distance < size) violation("copyFromBuffer: onto itself");
  const softmetal::Bound from = softmetal::bound(source, source_offset);
  const softmetal::Bound to = softmetal::bound(destination, destination_offset);
  [buffer_ add:{[from, to, size] {
             std::memcpy(to.memory->data() + to.offset, from.memory->data() + from.offset, size);
             return softmetal::Failure{};
           }}];
}
- (void)fillBuffer:(SoftMTLBuffer*)buffer range:(NSRange)range value:(unsigned char)value {
  [self checkOpen];
  check_range(buffer, range.location, range.length, "fillBuffer:");
  const softmetal::Bound to = softmetal::bound(buffer, range.location);
  [buffer_ add:{[to, value, size = range.length] {
             std::memset(to.memory->data() + to.offset, value, size);
             return softmetal::Failure{};
           }}];
}
- (void)resolveCounters:(SoftMTLCounterSampleBuffer*)samples
                inRange:(NSRange)range
      destinationBuffer:(SoftMTLBuffer*)buffer
      destinationOffset:(NSUInteger)offset {
  [self checkOpen];
  check_range(buffer, offset, range.length * 8, "resolveCounters:");
  auto from = *samples->samples_;
  if (range.location + range.length > from->size()) violation("resolveCounters: beyond the end");
  const softmetal::Bound to = softmetal::bound(buffer, offset);
  [buffer_
      add:{[from, to, range] {
        std::memcpy(to.memory->data() + to.offset, from->data() + range.location, range.length * 8);
        return softmetal::Failure{};
      }}];
}
- (void)sampleCountersInBuffer:(SoftMTLCounterSampleBuffer*)samples
                 atSampleIndex:(NSUInteger)index
                   withBarrier:(bool)barrier {
  [self checkOpen];
  (void)barrier;
  [buffer_ add:softmetal::sample_step(samples, index)];
}
- (void)resetCommandsInBuffer:(SoftMTLIndirectCommandBuffer*)buffer withRange:(NSRange)range {
  [self checkOpen];
  auto commands = *buffer->commands_;
  if (range.location + range.length > commands->commands.size()) {
    violation("resetCommandsInBuffer: beyond the end");
  }
  [buffer_ add:{[commands, range] {
             for (NSUInteger i = 0; i < range.length; ++i)
               commands->commands[range.location + i] = {};
             return softmetal::Failure{};
           }}];
}
- (void)optimizeIndirectCommandBuffer:(SoftMTLIndirectCommandBuffer*)buffer
                            withRange:(NSRange)range {
  [self checkOpen];
  (void)buffer;
  (void)range;
}
@end
