// Compute pipelines, their descriptors, and binary archives: a stand-in that remembers which
// pipelines were put into it, as a text file.
#include <algorithm>
#include <fstream>

#include "engine/counts.h"
#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::settings;
using softmetal::violation;

namespace {
const char* const kArchiveMagic = "softmetal binary archive 1";

// The last line of an archive: what is in front of it is whole.
std::string end_of(const std::set<std::string>& keys) {
  std::uint32_t sum = 0;
  for (const std::string& key : keys) {
    for (const unsigned char byte : key) sum = sum * 31 + byte;
  }
  return "end " + std::to_string(sum);
}
}  // namespace

@implementation MTLComputePipelineDescriptor
- (void)dealloc {
  [function_ release];
  [label_ release];
  [archives_ release];
  [super dealloc];
}
- (void)reset {
  [self setComputeFunction:nil];
  [self setLabel:nil];
  [self setBinaryArchives:nil];
  max_threads_ = 0;
  indirect_ = multiple_of_width_ = false;
}
- (id)computeFunction {
  return function_;
}
- (void)setComputeFunction:(SoftMTLFunction*)function {
  softmetal::assign(&function_, function);
}
- (id)label {
  return label_;
}
- (void)setLabel:(NSString*)label {
  softmetal::assign(&label_, label);
}
- (id)binaryArchives {
  return archives_;
}
- (void)setBinaryArchives:(NSArray*)archives {
  softmetal::assign(&archives_, archives);
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return max_threads_;
}
- (void)setMaxTotalThreadsPerThreadgroup:(NSUInteger)threads {
  max_threads_ = threads;
}
- (bool)supportIndirectCommandBuffers {
  return indirect_;
}
- (void)setSupportIndirectCommandBuffers:(bool)support {
  indirect_ = support;
}
- (bool)threadGroupSizeIsMultipleOfThreadExecutionWidth {
  return multiple_of_width_;
}
- (void)setThreadGroupSizeIsMultipleOfThreadExecutionWidth:(bool)multiple {
  multiple_of_width_ = multiple;
}
@end

@implementation SoftMTLComputePipelineState
- (id)initWithDevice:(id)device
            function:(SoftMTLFunction*)function
          descriptor:(MTLComputePipelineDescriptor*)descriptor
               error:(NSError**)error {
  [super initWithDevice:device];
  if (function == nil) violation("a compute pipeline without a function");
  const softmetal::Library& tables = *(*function->library_)->tables;
  if (static_cast<int>(tables.family) > settings().family) {
    softmetal::report(error, MTLLibraryErrorDomain, 1,
                      std::string(function->kernel_->name) + " uses what GPU family Apple" +
                          std::to_string(tables.family) + " brings; this device is of Apple" +
                          std::to_string(settings().family));
    [self release];
    return nil;
  }
  if (descriptor != nil && descriptor->indirect_ && settings().indirect_commands == 0) {
    softmetal::report(
        error, MTLLibraryErrorDomain, 3,
        std::string(function->kernel_->name) + ": this device has no indirect commands");
    [self release];
    return nil;
  }
  auto pipeline = std::make_shared<softmetal::Pipeline>();
  pipeline->library = *function->library_;
  pipeline->kernel = function->kernel_;
  pipeline->constants = *function->constants_;
  pipeline->max_threads = static_cast<unsigned>(settings().max_threads);
  for (const NSUInteger limit :
       {NSUInteger{function->kernel_->max_threads}, descriptor ? descriptor->max_threads_ : 0}) {
    if (limit != 0) pipeline->max_threads = static_cast<unsigned>(limit);
  }
  pipeline->max_threads =
      std::min(pipeline->max_threads, static_cast<unsigned>(settings().max_threads));
  pipeline->indirect = descriptor != nil && descriptor->indirect_;
  const std::size_t bytes = pipeline->threadgroup_bytes();
  if (bytes > static_cast<std::size_t>(settings().threadgroup_memory)) {
    softmetal::report(error, MTLLibraryErrorDomain, 3,
                      std::string(function->kernel_->name) + " declares " + std::to_string(bytes) +
                          " bytes of threadgroup memory; there are " +
                          std::to_string(settings().threadgroup_memory));
    [self release];
    return nil;
  }
  pipeline_ = new std::shared_ptr<const softmetal::Pipeline>(std::move(pipeline));
  if (descriptor != nil) [self setLabel:descriptor->label_];
  return self;
}
- (void)dealloc {
  delete pipeline_;
  [super dealloc];
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return (*pipeline_)->max_threads;
}
- (NSUInteger)threadExecutionWidth {
  return softmetal::kSimdWidth;
}
- (NSUInteger)staticThreadgroupMemoryLength {
  return (*pipeline_)->threadgroup_bytes();
}
- (bool)supportIndirectCommandBuffers {
  return (*pipeline_)->indirect;
}
@end

@interface SoftMTLBinding : NSObject {
 @public
  const softmetal::Binding* binding_;
}
@end
@implementation SoftMTLBinding
- (id)name {
  return softmetal::string(binding_->name);
}
- (NSInteger)type {
  return binding_->space == softmetal::kThreadgroup ? 1 : 0;
}
- (NSUInteger)index {
  return binding_->index;
}
- (NSUInteger)access {
  return binding_->writable ? 1 : 0;
}
- (bool)isUsed {
  return true;
}
- (bool)isArgument {
  return true;
}
@end

@implementation MTLComputePipelineReflection
- (void)dealloc {
  [bindings_ release];
  [super dealloc];
}
- (id)initWithFunction:(SoftMTLFunction*)function {
  std::vector<id> bindings;
  const softmetal::Kernel& kernel = *function->kernel_;
  for (unsigned i = 0; i < kernel.binding_count; ++i) {
    SoftMTLBinding* binding = [[[SoftMTLBinding alloc] init] autorelease];
    binding->binding_ = &kernel.bindings[i];
    bindings.push_back(binding);
  }
  bindings_ = [[NSArray alloc] initWithObjects:bindings.data() count:bindings.size()];
  return self;
}
- (id)bindings {
  return bindings_;
}
@end

@implementation MTLBinaryArchiveDescriptor
- (void)dealloc {
  [url_ release];
  [super dealloc];
}
- (id)url {
  return url_;
}
- (void)setUrl:(NSURL*)url {
  softmetal::assign(&url_, url);
}
@end

@implementation SoftMTLBinaryArchive
- (id)initWithDevice:(id)device {
  keys_ = new std::set<std::string>;
  return [super initWithDevice:device];
}
- (void)dealloc {
  delete keys_;
  [super dealloc];
}
- (bool)readFrom:(const std::string&)path error:(NSError**)error {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line) || line != kArchiveMagic) {
    softmetal::report(error, MTLBinaryArchiveDomain, 1, path + " is no binary archive");
    return false;
  }
  while (std::getline(file, line) && line.compare(0, 4, "end ") != 0) keys_->insert(line);
  if (file && line == end_of(*keys_)) return true;
  // It is not said that Metal finds this.
  violation("an archive is read that was written in part, or changed: " + path);
}
- (bool)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                            error:(NSError**)error {
  SoftMTLComputePipelineState* state =
      [[SoftMTLComputePipelineState alloc] initWithDevice:device_
                                                 function:descriptor->function_
                                               descriptor:descriptor
                                                    error:error];
  if (state == nil) return false;
  softmetal::count(softmetal::Count::kCompiled);
  keys_->insert((*state->pipeline_)->key());
  [state release];
  return true;
}
- (bool)serializeToURL:(NSURL*)url error:(NSError**)error {
  std::ofstream file(*url->path_);
  file << kArchiveMagic << "\n";
  for (const std::string& key : *keys_) file << key << "\n";
  file << end_of(*keys_) << "\n";
  file.close();
  if (!file)
    softmetal::report(error, MTLBinaryArchiveDomain, 4, *url->path_ + " cannot be written");
  return static_cast<bool>(file);
}
@end
