// MTLDevice: what it can, and what it makes.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "engine/counts.h"
#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::settings;
using softmetal::violation;

namespace softmetal {
std::atomic<std::int64_t> allocated_bytes{0};
}

namespace {

// MTLGPUFamily.
constexpr NSInteger kApple1 = 1001, kApple9 = 1009, kMac1 = 2001, kMac2 = 2002, kCommon1 = 3001;
constexpr NSInteger kCommon3 = 3003, kMetal3 = 5001;

constexpr NSUInteger kBindingInfo = 1;  // MTLPipelineOptionBindingInfo
constexpr NSUInteger kPrivate = 2;      // MTLStorageModePrivate

SoftMTLDevice* the_device = nil;
std::mutex& device_mutex() {
  static auto* one = new std::mutex;
  return *one;
}

softmetal::Macros macros_of(MTLCompileOptions* options) {
  softmetal::Macros macros;
  if (options == nil || options->macros_ == nil) return macros;
  for (const auto& [name, value] : *options->macros_->entries_) {
    macros.emplace_back(softmetal::text([name description]), softmetal::text([value description]));
  }
  return macros;
}

}  // namespace

SOFTMETAL_EXPORT id MTLCreateSystemDefaultDevice(void) {
  const std::lock_guard lock(device_mutex());
  if (the_device == nil) return the_device = [[SoftMTLDevice alloc] init];
  return [the_device retain];
}

SOFTMETAL_EXPORT id MTLCopyAllDevices(void) {
  id device = MTLCreateSystemDefaultDevice();
  id all = [[NSArray alloc] initWithObjects:&device count:1];
  [device release];
  return all;
}

@implementation SoftMTLObject
- (id)initWithDevice:(id)device {
  device_ = [device retain];
  return self;
}
- (void)dealloc {
  [device_ release];
  [label_ release];
  [super dealloc];
}
- (id)device {
  return device_;
}
- (id)label {
  return label_;
}
- (void)setLabel:(NSString*)label {
  softmetal::assign(&label_, label);
}
@end

@interface MTLArchitecture : NSObject
@end
@implementation MTLArchitecture
- (id)name {
  return softmetal::string("software");
}
@end

@implementation SoftMTLDevice
- (void)release {
  const std::lock_guard lock(device_mutex());
  if ([self retainCount] == 1) the_device = nil;
  [super release];
}
- (id)name {
  return softmetal::string(settings().name);
}
- (id)architecture {
  return [[[MTLArchitecture alloc] init] autorelease];
}
- (NSUInteger)registryID {
  return 1;
}
- (bool)supportsFamily:(NSInteger)family {
  const NSInteger own = settings().family;
  if (family >= kApple1 && family <= kApple9) return family - kApple1 < own;
  if (family == kMac1 || family == kMac2) return own >= 7;
  if (family >= kCommon1 && family <= kCommon3) return true;
  return family == kMetal3 && own >= 7;
}
- (bool)hasUnifiedMemory {
  return true;
}
- (bool)isLowPower {
  return false;
}
- (bool)isHeadless {
  return true;
}
- (bool)isRemovable {
  return false;
}
- (bool)supportsDynamicLibraries {
  return false;
}
- (bool)supportsFunctionPointers {
  return false;
}
- (bool)supportsShaderBarycentricCoordinates {
  return false;
}
- (NSUInteger)maxBufferLength {
  return static_cast<NSUInteger>(settings().max_buffer);
}
- (std::uint64_t)recommendedMaxWorkingSetSize {
  return static_cast<std::uint64_t>(settings().max_memory);
}
- (NSUInteger)currentAllocatedSize {
  return static_cast<NSUInteger>(softmetal::allocated_bytes.load());
}
- (NSUInteger)maxThreadgroupMemoryLength {
  return static_cast<NSUInteger>(settings().threadgroup_memory);
}
- (MTLSize)maxThreadsPerThreadgroup {
  const auto most = static_cast<NSUInteger>(settings().max_threads);
  return {most, most, most};
}
- (NSUInteger)argumentBuffersSupport {
  return 0;
}

// --- memory

- (id)newBuffer:(NSUInteger)length options:(NSUInteger)options {
  if (length == 0) violation("a buffer of 0 bytes");
  const NSUInteger storage = options >> 4 & 15;
  if (storage != 0 && storage != kPrivate) violation("buffers are in shared or in private storage");
  if (length > [self maxBufferLength]) return nil;
  const auto bytes = static_cast<std::int64_t>(length);
  if ((softmetal::allocated_bytes += bytes) > settings().max_memory) {
    softmetal::allocated_bytes -= bytes;
    return nil;
  }
  if (storage == kPrivate) softmetal::count(softmetal::Count::kPrivateBuffers);
  SoftMTLBuffer* buffer = [[SoftMTLBuffer alloc] initWithDevice:self];
  buffer->options_ = options;
  buffer->memory_ = new std::shared_ptr<softmetal::Allocation>(
      new softmetal::Allocation(length, static_cast<std::size_t>(settings().buffer_alignment)),
      [bytes](softmetal::Allocation* memory) {
        softmetal::allocated_bytes -= bytes;
        delete memory;
      });
  return buffer;
}
- (id)newBufferWithLength:(NSUInteger)length options:(NSUInteger)options {
  return [self newBuffer:length options:options];
}
- (id)newBufferWithBytes:(const void*)bytes length:(NSUInteger)length options:(NSUInteger)options {
  SoftMTLBuffer* buffer = [self newBuffer:length options:options];
  if (buffer == nil) return nil;
  if (softmetal::is_private(buffer)) violation("newBufferWithBytes: in private storage");
  std::memcpy((*buffer->memory_)->data(), bytes, length);
  return buffer;
}
- (id)newBufferWithBytesNoCopy:(void*)bytes
                        length:(NSUInteger)length
                       options:(NSUInteger)options
                   deallocator:(void (^)(void*, NSUInteger))deallocator {
  const auto page = static_cast<NSUInteger>(getpagesize());
  if (reinterpret_cast<std::uintptr_t>(bytes) % page != 0 || length % page != 0 || length == 0) {
    violation("newBufferWithBytesNoCopy: memory is whole pages of " + std::to_string(page) +
              " bytes");
  }
  if ((options >> 4 & 15) != 0) violation("newBufferWithBytesNoCopy: memory of the host is shared");
  if (length > [self maxBufferLength]) return nil;
  SoftMTLBuffer* buffer = [[SoftMTLBuffer alloc] initWithDevice:self];
  buffer->options_ = options;
  buffer->deallocator_ = Block_copy(deallocator);
  buffer->memory_ = new std::shared_ptr<softmetal::Allocation>(
      std::make_shared<softmetal::Allocation>(bytes, length));
  return buffer;
}

// --- code

- (id)newLibraryWithSource:(NSString*)source
                   options:(MTLCompileOptions*)options
                     error:(NSError**)error {
  std::string message;
  auto loaded = softmetal::load_library(softmetal::text(source), macros_of(options), &message);
  if (loaded == nullptr) {
    softmetal::report(error, MTLLibraryErrorDomain, 3, message);
    return nil;
  }
  SoftMTLLibrary* library = [[SoftMTLLibrary alloc] initWithDevice:self];
  library->library_ = new std::shared_ptr<const softmetal::LoadedLibrary>(loaded);
  return library;
}
- (void)newLibraryWithSource:(NSString*)source
                     options:(MTLCompileOptions*)options
           completionHandler:(void (^)(id, NSError*))handler {
  [source retain];
  [options retain];
  handler = Block_copy(handler);
  std::thread([self, source, options, handler] {
    NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
    NSError* error = nil;
    id library = [self newLibraryWithSource:source options:options error:&error];
    handler(library, error);
    [library release];
    [source release];
    [options release];
    Block_release(handler);
    [pool drain];
  }).detach();
}
- (id)newComputePipelineStateWithFunction:(SoftMTLFunction*)function error:(NSError**)error {
  softmetal::count(softmetal::Count::kCompiled);
  return [[SoftMTLComputePipelineState alloc] initWithDevice:self
                                                    function:function
                                                  descriptor:nil
                                                       error:error];
}
- (id)newComputePipelineStateWithFunction:(SoftMTLFunction*)function
                                  options:(NSUInteger)options
                               reflection:(id*)reflection
                                    error:(NSError**)error {
  id state = [self newComputePipelineStateWithFunction:function error:error];
  if (state != nil && reflection != nullptr && (options & kBindingInfo) != 0) {
    *reflection = [[[MTLComputePipelineReflection alloc] initWithFunction:function] autorelease];
  }
  return state;
}
- (id)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                    options:(NSUInteger)options
                                 reflection:(id*)reflection
                                      error:(NSError**)error {
  SoftMTLComputePipelineState* state =
      [[SoftMTLComputePipelineState alloc] initWithDevice:self
                                                 function:descriptor->function_
                                               descriptor:descriptor
                                                    error:error];
  constexpr NSUInteger kFailOnMiss = 4;  // MTLPipelineOptionFailOnBinaryArchiveMiss
  if (state != nil && reflection != nullptr && (options & kBindingInfo) != 0) {
    *reflection =
        [[[MTLComputePipelineReflection alloc] initWithFunction:descriptor->function_] autorelease];
  }
  if (state == nil) return state;
  const std::string key = (*state->pipeline_)->key();
  for (NSUInteger i = 0; i < [descriptor->archives_ count]; ++i) {
    SoftMTLBinaryArchive* archive = [descriptor->archives_ objectAtIndex:i];
    if (archive->keys_->count(key) == 0) continue;
    softmetal::count(softmetal::Count::kFound);
    return state;
  }
  if ((options & kFailOnMiss) == 0) {
    softmetal::count(softmetal::Count::kCompiled);
    return state;
  }
  [state release];
  softmetal::report(error, MTLBinaryArchiveDomain, 2, "no archive has this pipeline");
  return nil;
}
- (id)newBinaryArchiveWithDescriptor:(id)descriptor error:(NSError**)error {
  SoftMTLBinaryArchive* archive = [[SoftMTLBinaryArchive alloc] initWithDevice:self];
  NSURL* url = [static_cast<MTLBinaryArchiveDescriptor*>(descriptor) url];
  if (url == nil || [archive readFrom:*url->path_ error:error]) return archive;
  [archive release];
  return nil;
}

// --- queues, events, counters

- (id)newCommandQueue {
  return [[SoftMTLCommandQueue alloc] initWithDevice:self];
}
- (id)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)count {
  (void)count;
  return [self newCommandQueue];
}
- (id)newEvent {
  return [[SoftMTLEvent alloc] initWithDevice:self];
}
- (id)newSharedEvent {
  return [[SoftMTLSharedEvent alloc] initWithDevice:self];
}
- (id)newFence {
  return [[SoftMTLFence alloc] initWithDevice:self];
}
- (id)newIndirectCommandBufferWithDescriptor:(id)descriptor
                             maxCommandCount:(NSUInteger)count
                                     options:(NSUInteger)options {
  if (count == 0) violation("an indirect command buffer of no commands");
  if (count > static_cast<NSUInteger>(settings().indirect_commands)) return nil;
  const NSUInteger storage = options >> 4 & 15;
  return [[SoftMTLIndirectCommandBuffer alloc] initWithDevice:self
                                                   descriptor:descriptor
                                                        count:count
                                                    isPrivate:storage == kPrivate];
}
- (id)newCounterSampleBufferWithDescriptor:(id)descriptor error:(NSError**)error {
  return [[SoftMTLCounterSampleBuffer alloc] initWithDevice:self descriptor:descriptor error:error];
}
- (bool)supportsCounterSampling:(NSUInteger)point {
  constexpr NSUInteger kStageBoundary = 0, kDispatchBoundary = 2, kBlitBoundary = 4;
  return point == kStageBoundary || point == kDispatchBoundary || point == kBlitBoundary;
}
- (void)sampleTimestamps:(std::uint64_t*)cpu gpuTimestamp:(std::uint64_t*)gpu {
  *cpu = *gpu = softmetal::now_nanoseconds();
}
- (std::uint64_t)queryTimestampFrequency {
  return 1'000'000'000;
}
@end
