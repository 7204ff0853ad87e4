// Metal's objects over the engine. Each class holds its C++ side behind one pointer, as GCC's
// runtime constructs no C++ members.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/command_list.h"
#include "engine/dispatch.h"
#include "engine/library.h"
#include "objects/foundation.h"

struct MTLSize {
  NSUInteger width, height, depth;
};

extern "C" NSString* const MTLLibraryErrorDomain;
extern "C" NSString* const MTLCommandBufferErrorDomain;
extern "C" NSString* const MTLBinaryArchiveDomain;
extern "C" NSString* const MTLCounterErrorDomain;
extern "C" NSString* const MTLCommonCounterTimestamp;
extern "C" NSString* const MTLCommonCounterSetTimestamp;

// What every object of a device has.
@interface SoftMTLObject : NSObject {
 @public
  id device_;
  NSString* label_;
}
- (id)initWithDevice:(id)device;
- (id)device;
- (id)label;
- (void)setLabel:(NSString*)label;
@end

@interface SoftMTLDevice : NSObject
@end

@interface SoftMTLBuffer : SoftMTLObject {
 @public
  std::shared_ptr<softmetal::Allocation>* memory_;
  NSUInteger options_;
  void (^deallocator_)(void*, NSUInteger);
  id heap_;
}
- (NSUInteger)length;
@end

@interface MTLCompileOptions : NSObject {
 @public
  NSDictionary* macros_;
  NSUInteger language_version_;
  bool fast_math_;
  NSInteger math_mode_, math_functions_, optimization_;
}
@end

@interface MTLFunctionConstantValues : NSObject {
 @public
  // Bytes by place or by name, with their type in front of them.
  std::vector<std::pair<NSUInteger, std::string>>* by_index_;
  std::vector<std::pair<std::string, std::string>>* by_name_;
}
@end

@interface SoftMTLLibrary : SoftMTLObject {
 @public
  std::shared_ptr<const softmetal::LoadedLibrary>* library_;
}
@end

@interface SoftMTLFunction : SoftMTLObject {
 @public
  std::shared_ptr<const softmetal::LoadedLibrary>* library_;
  const softmetal::Kernel* kernel_;
  std::vector<unsigned char>* constants_;
}
@end

@interface MTLComputePipelineDescriptor : NSObject {
 @public
  SoftMTLFunction* function_;
  NSString* label_;
  NSArray* archives_;
  NSUInteger max_threads_;
  bool indirect_, multiple_of_width_;
}
@end

// What a kernel takes: buffers and threadgroup memory, by index.
@interface MTLComputePipelineReflection : NSObject {
 @public
  NSArray* bindings_;
}
- (id)initWithFunction:(SoftMTLFunction*)function;
@end

@interface SoftMTLComputePipelineState : SoftMTLObject {
 @public
  std::shared_ptr<const softmetal::Pipeline>* pipeline_;
}
- (id)initWithDevice:(id)device
            function:(SoftMTLFunction*)function
          descriptor:(MTLComputePipelineDescriptor*)descriptor
               error:(NSError**)error;
@end

@interface MTLBinaryArchiveDescriptor : NSObject {
  NSURL* url_;
}
- (id)url;
@end

@interface SoftMTLBinaryArchive : SoftMTLObject {
 @public
  std::set<std::string>* keys_;
}
- (bool)readFrom:(const std::string&)path error:(NSError**)error;
@end

@interface SoftMTLEvent : SoftMTLObject {
 @public
  std::shared_ptr<softmetal::EventState>* state_;
}
@end

@interface SoftMTLSharedEvent : SoftMTLEvent
@end

@interface SoftMTLFence : SoftMTLObject
@end

@interface SoftMTLCommandQueue : SoftMTLObject {
 @public
  std::shared_ptr<softmetal::Queue>* queue_;
}
@end

@interface SoftMTLCommandBuffer : SoftMTLObject {
 @public
  SoftMTLCommandQueue* queue_;
  std::shared_ptr<softmetal::CommandList>* list_;
  id encoder_;  // the open one, not owned
  NSError* error_;
  bool retains_, committed_;
}
- (id)initWithQueue:(SoftMTLCommandQueue*)queue retains:(bool)retains;
- (void)add:(softmetal::Step)step;
- (void)checkOpen:(const char*)what;  // neither committed nor with an open encoder
@end

@interface SoftMTLCommandEncoder : SoftMTLObject {
 @public
  SoftMTLCommandBuffer* buffer_;
  bool ended_;
}
- (id)initWithBuffer:(SoftMTLCommandBuffer*)buffer;
- (void)checkOpen;
- (void)finish;  // what is still to be put into the command buffer
- (void)endEncoding;
@end

namespace softmetal {
struct Item;
struct IndirectCommands;
}  // namespace softmetal

@interface SoftMTLComputeCommandEncoder : SoftMTLCommandEncoder {
 @public
  softmetal::Dispatch* next_;              // what has been bound
  std::vector<softmetal::Item>* segment_;  // what no barrier parts
  std::map<const softmetal::Allocation*, NSUInteger>* used_;
  bool concurrent_;
  id end_sample_;
  NSUInteger end_index_;
}
@end

@interface SoftMTLBlitCommandEncoder : SoftMTLCommandEncoder
@end

@interface SoftMTLIndirectCommandBuffer : SoftMTLObject {
 @public
  std::shared_ptr<softmetal::IndirectCommands>* commands_;
}
- (id)initWithDevice:(id)device
          descriptor:(id)descriptor
               count:(NSUInteger)count
           isPrivate:(bool)is_private;
@end

@interface SoftMTLCounterSampleBuffer : SoftMTLObject {
 @public
  std::shared_ptr<std::vector<std::uint64_t>>* samples_;
}
- (id)initWithDevice:(id)device descriptor:(id)descriptor error:(NSError**)error;
@end

namespace softmetal {

struct IndirectCommand {
  Dispatch dispatch;
  bool set = false, barrier = false;
};

struct IndirectCommands {
  std::vector<IndirectCommand> commands;
  bool inherits_buffers = true, inherits_pipeline = true;
  bool is_private = false;                           // the host encodes nothing
  bool takes_groups = false, takes_threads = false;  // what its dispatches count
  unsigned buffer_count = 0, threadgroup_count = 0;
  std::atomic<int> executions{0};  // encoded, and not ended
};

// Counts an execution from when it is encoded to when its step is let go.
std::shared_ptr<IndirectCommands> executed(const std::shared_ptr<IndirectCommands>& commands);

// Usage of what useResource: has named.
using Uses = std::map<const Allocation*, NSUInteger>;
constexpr NSUInteger kUsageRead = 1, kUsageWrite = 2;

// One dispatch, or a range of an indirect command buffer, which is read when it runs.
struct Item {
  Dispatch dispatch;  // of a range: what it inherits
  std::shared_ptr<IndirectCommands> indirect;
  NSRange range = {};
  Uses used;
};

Failure run_items(const std::vector<Item>& items);
Size3 size3(MTLSize size);
// A step that writes the time into a sample.
Step sample_step(SoftMTLCounterSampleBuffer* samples, NSUInteger index);
Bound bound(SoftMTLBuffer* buffer, NSUInteger offset);
bool is_private(SoftMTLBuffer* buffer);

}  // namespace softmetal
