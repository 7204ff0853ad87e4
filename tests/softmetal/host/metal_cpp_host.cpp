// A host program over Apple's metal-cpp, unmodified: device, buffers, library, pipeline, commands,
// events, indirect commands, counters, archives. Each check that fails is printed; the exit status
// is the number of them. `metal_cpp_host FOLDER`: where it may write a file.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include <Metal/Metal.hpp>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

int failures = 0;

void check(bool holds, const char* what, int line) {
  if (holds) return;
  std::printf("line %d: %s does not hold\n", line, what);
  ++failures;
}
#define CHECK(...) check((__VA_ARGS__), #__VA_ARGS__, __LINE__)

constexpr const char* kSource = R"(#include <metal_stdlib>
using namespace metal;
constant float shift [[function_constant(0)]];
struct Params { float scale; uint count; };
kernel void affine(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                   constant Params& p [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i < p.count) y[i] = p.scale * x[i] + shift + EXTRA;
}
kernel void reverse(device float* y [[buffer(0)]], threadgroup float* s [[threadgroup(0)]],
                    uint i [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
  s[i] = y[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = s[n - 1 - i];
}
)";

struct Params {
  float scale;
  unsigned count;
};

NS::String* text(const char* utf8) {
  return NS::String::string(utf8, NS::UTF8StringEncoding);
}

class Host {
 public:
  Host() : device_(NS::TransferPtr(MTL::CreateSystemDefaultDevice())) {
    queue_ = NS::TransferPtr(device_->newCommandQueue());
    x_ =
        NS::TransferPtr(device_->newBuffer(kCount * sizeof(float), MTL::ResourceStorageModeShared));
    y_ =
        NS::TransferPtr(device_->newBuffer(kCount * sizeof(float), MTL::ResourceStorageModeShared));
    for (unsigned i = 0; i < kCount; ++i) x()[i] = static_cast<float>(i);
    build();
  }

  void run(const std::string& folder) {
    properties();
    errors();
    completion();
    concurrent();
    blit();
    events();
    indirect();
    counters();
    archives(folder);
  }

 private:
  static constexpr unsigned kCount = 100;

  float* x() { return static_cast<float*>(x_->contents()); }
  float* y() { return static_cast<float*>(y_->contents()); }

  void build() {
    auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
    const NS::Object* value = NS::Number::number(10);
    const NS::Object* name = text("EXTRA");
    options->setPreprocessorMacros(NS::Dictionary::dictionary(value, name));
    options->setFastMathEnabled(false);
    options->setLanguageVersion(MTL::LanguageVersion3_1);
    NS::Error* error = nullptr;
    library_ = NS::TransferPtr(device_->newLibrary(text(kSource), options.get(), &error));
    CHECK(error == nullptr && library_);
    CHECK(library_->functionNames()->count() == 2);
    auto constants = NS::TransferPtr(MTL::FunctionConstantValues::alloc()->init());
    const float shift = 0.5f;
    constants->setConstantValue(&shift, MTL::DataTypeFloat, NS::UInteger{0});
    affine_ = NS::TransferPtr(library_->newFunction(text("affine"), constants.get(), &error));
    CHECK(affine_->functionConstantsDictionary()->count() == 1);
    auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
    descriptor->setComputeFunction(affine_.get());
    descriptor->setLabel(text("affine"));
    descriptor->setSupportIndirectCommandBuffers(true);
    pipeline_ = NS::TransferPtr(device_->newComputePipelineState(
        descriptor.get(), MTL::PipelineOptionNone, nullptr, &error));
    CHECK(pipeline_ && std::strcmp(pipeline_->label()->utf8String(), "affine") == 0);
    auto reverse = NS::TransferPtr(library_->newFunction(text("reverse")));
    reverse_ = NS::TransferPtr(device_->newComputePipelineState(reverse.get(), &error));
    CHECK(reverse_ && reverse_->threadExecutionWidth() == 32);
  }

  void properties() {
    CHECK(device_->supportsFamily(MTL::GPUFamilyApple7));
    CHECK(device_->supportsFamily(MTL::GPUFamilyApple9));
    CHECK(!device_->supportsFamily(MTL::GPUFamilyApple10));
    CHECK(device_->supportsFamily(MTL::GPUFamilyMetal3));
    CHECK(device_->hasUnifiedMemory());
    CHECK(device_->maxThreadgroupMemoryLength() == 32768);
    CHECK(device_->maxThreadsPerThreadgroup().width == 1024);
    CHECK(device_->maxBufferLength() >= 1u << 28);
    CHECK(std::strlen(device_->name()->utf8String()) > 0);
    CHECK(device_->currentAllocatedSize() >= 2 * kCount * sizeof(float));
    CHECK(pipeline_->maxTotalThreadsPerThreadgroup() == 1024);
    CHECK(x_->length() == kCount * sizeof(float));
    CHECK(x_->storageMode() == MTL::StorageModeShared);
    auto hidden = NS::TransferPtr(device_->newBuffer(64, MTL::ResourceStorageModePrivate));
    CHECK(hidden->contents() == nullptr && hidden->storageMode() == MTL::StorageModePrivate);
  }

  void errors() {
    NS::Error* error = nullptr;
    CHECK(device_->newLibrary(text("kernel void k() { nonsense }"), nullptr, &error) == nullptr);
    CHECK(error != nullptr && error->code() == MTL::LibraryErrorCompileFailure);
    std::atomic<int> compiled = 0;
    device_->newLibrary(text(kSource), nullptr, [&](MTL::Library* made, NS::Error* why) {
      compiled = made == nullptr && why != nullptr ? 1 : 2;  // EXTRA is not defined
    });
    while (compiled == 0) std::this_thread::yield();
    CHECK(compiled == 1);
    const std::string message = error->localizedDescription()->utf8String();
    CHECK(message.find("program_source:1:") == 0);
    CHECK(std::strcmp(error->domain()->utf8String(), "MTLLibraryErrorDomain") == 0);
  }

  void encode(MTL::ComputeCommandEncoder* encoder, float scale) {
    const Params params = {scale, kCount};
    encoder->setComputePipelineState(pipeline_.get());
    encoder->setBuffer(x_.get(), 0, 0);
    encoder->setBuffer(y_.get(), 0, 1);
    encoder->setBytes(&params, sizeof(params), 2);
  }

  void completion() {
    MTL::CommandBuffer* commands = queue_->commandBuffer();
    MTL::ComputeCommandEncoder* encoder = commands->computeCommandEncoder();
    encode(encoder, 2);
    encoder->dispatchThreadgroups(MTL::Size(4, 1, 1), MTL::Size(32, 1, 1));
    encoder->endEncoding();
    std::atomic<int> seen = 0;
    commands->addScheduledHandler([&](MTL::CommandBuffer*) { ++seen; });
    commands->addCompletedHandler([&](MTL::CommandBuffer* done) {
      seen += done->status() == MTL::CommandBufferStatusCompleted ? 10 : 100;
    });
    commands->commit();
    commands->waitUntilCompleted();
    CHECK(seen == 11);
    CHECK(commands->error() == nullptr);
    CHECK(commands->GPUEndTime() >= commands->GPUStartTime());
    for (unsigned i = 0; i < kCount; ++i) CHECK(y()[i] == 2 * x()[i] + 10.5f);
  }

  void concurrent() {
    MTL::CommandBuffer* commands = queue_->commandBuffer();
    auto* encoder = commands->computeCommandEncoder(MTL::DispatchTypeConcurrent);
    encode(encoder, 3);
    encoder->dispatchThreads(MTL::Size(kCount, 1, 1), MTL::Size(64, 1, 1));
    encoder->memoryBarrier(MTL::BarrierScopeBuffers);
    encoder->setComputePipelineState(reverse_.get());
    encoder->setBuffer(y_.get(), 0, 0);
    encoder->setThreadgroupMemoryLength(kCount * 4, 0);
    encoder->dispatchThreads(MTL::Size(kCount, 1, 1), MTL::Size(kCount, 1, 1));
    encoder->endEncoding();
    commands->commit();
    commands->waitUntilCompleted();
    for (unsigned i = 0; i < kCount; ++i) CHECK(y()[i] == 3 * x()[kCount - 1 - i] + 10.5f);
  }

  void blit() {
    MTL::CommandBuffer* commands = queue_->commandBuffer();
    MTL::BlitCommandEncoder* encoder = commands->blitCommandEncoder();
    encoder->copyFromBuffer(x_.get(), 4, y_.get(), 8, 16);
    encoder->fillBuffer(y_.get(), NS::Range(0, 8), 0);
    encoder->endEncoding();
    commands->commit();
    commands->waitUntilCompleted();
    CHECK(y()[0] == 0 && y()[1] == 0 && y()[2] == x()[1] && y()[5] == x()[4]);
  }

  void events() {
    auto event = NS::TransferPtr(device_->newSharedEvent());
    MTL::CommandBuffer* commands = queue_->commandBuffer();
    commands->encodeWait(event.get(), 1);
    commands->encodeSignalEvent(event.get(), 2);
    commands->commit();
    CHECK(!event->waitUntilSignaledValue(2, 20));
    std::atomic<std::uint64_t> told = 0;
    auto listener = NS::TransferPtr(MTL::SharedEventListener::alloc()->init());
    event->notifyListener(listener.get(), 2,
                          [&](MTL::SharedEvent*, std::uint64_t value) { told = value; });
    event->setSignaledValue(1);
    CHECK(event->waitUntilSignaledValue(2, 60'000) && event->signaledValue() == 2);
    commands->waitUntilCompleted();
    CHECK(told == 2);
  }

  void indirect() {
    auto descriptor = NS::TransferPtr(MTL::IndirectCommandBufferDescriptor::alloc()->init());
    descriptor->setCommandTypes(MTL::IndirectCommandTypeConcurrentDispatch);
    descriptor->setInheritBuffers(false);
    descriptor->setInheritPipelineState(false);
    descriptor->setMaxKernelBufferBindCount(3);
    descriptor->setMaxKernelThreadgroupMemoryBindCount(0);
    auto recorded = NS::TransferPtr(
        device_->newIndirectCommandBuffer(descriptor.get(), 1, MTL::ResourceStorageModeShared));
    const Params values = {5, kCount};
    auto params = NS::TransferPtr(device_->newBuffer(&values, sizeof(values), 0));
    MTL::IndirectComputeCommand* command = recorded->indirectComputeCommand(0);
    command->setComputePipelineState(pipeline_.get());
    command->setKernelBuffer(x_.get(), 0, 0);
    command->setKernelBuffer(y_.get(), 0, 1);
    command->setKernelBuffer(params.get(), 0, 2);
    command->concurrentDispatchThreadgroups(MTL::Size(2, 1, 1), MTL::Size(64, 1, 1));
    MTL::CommandBuffer* commands = queue_->commandBuffer();
    auto* encoder = commands->computeCommandEncoder(MTL::DispatchTypeConcurrent);
    const MTL::Resource* used[] = {x_.get(), y_.get(), params.get()};
    encoder->useResources(used, 3, MTL::ResourceUsageRead | MTL::ResourceUsageWrite);
    encoder->executeCommandsInBuffer(recorded.get(), NS::Range(0, 1));
    encoder->endEncoding();
    commands->commit();
    commands->waitUntilCompleted();
    for (unsigned i = 0; i < kCount; ++i) CHECK(y()[i] == 5 * x()[i] + 10.5f);
  }

  void counters() {
    CHECK(device_->supportsCounterSampling(MTL::CounterSamplingPointAtStageBoundary));
    auto* set = static_cast<MTL::CounterSet*>(device_->counterSets()->object(0));
    CHECK(set->name()->isEqualToString(MTL::CommonCounterSetTimestamp));
    auto descriptor = NS::TransferPtr(MTL::CounterSampleBufferDescriptor::alloc()->init());
    descriptor->setCounterSet(set);
    descriptor->setSampleCount(2);
    descriptor->setStorageMode(MTL::StorageModeShared);
    NS::Error* error = nullptr;
    auto samples = NS::TransferPtr(device_->newCounterSampleBuffer(descriptor.get(), &error));
    MTL::ComputePassDescriptor* pass = MTL::ComputePassDescriptor::computePassDescriptor();
    auto* attachment = pass->sampleBufferAttachments()->object(0);
    attachment->setSampleBuffer(samples.get());
    attachment->setStartOfEncoderSampleIndex(0);
    attachment->setEndOfEncoderSampleIndex(1);
    MTL::CommandBuffer* commands = queue_->commandBuffer();
    MTL::ComputeCommandEncoder* encoder = commands->computeCommandEncoder(pass);
    encode(encoder, 1);
    encoder->dispatchThreads(MTL::Size(kCount, 1, 1), MTL::Size(64, 1, 1));
    encoder->endEncoding();
    commands->commit();
    commands->waitUntilCompleted();
    NS::Data* data = samples->resolveCounterRange(NS::Range(0, 2));
    const auto* times = static_cast<const std::uint64_t*>(data->mutableBytes());
    CHECK(data->length() == 16 && times[0] != 0 && times[0] < times[1]);
    MTL::Timestamp cpu = 0, gpu = 0;
    device_->sampleTimestamps(&cpu, &gpu);
    CHECK(gpu > times[1]);
  }

  void archives(const std::string& folder) {
    NS::Error* error = nullptr;
    auto descriptor = NS::TransferPtr(MTL::BinaryArchiveDescriptor::alloc()->init());
    auto archive = NS::TransferPtr(device_->newBinaryArchive(descriptor.get(), &error));
    auto pipeline = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
    pipeline->setComputeFunction(affine_.get());
    CHECK(archive->addComputePipelineFunctions(pipeline.get(), &error));
    NS::URL* url = NS::URL::fileURLWithPath(text((folder + "/archive").c_str()));
    CHECK(archive->serializeToURL(url, &error));
    descriptor->setUrl(url);
    auto read = NS::TransferPtr(device_->newBinaryArchive(descriptor.get(), &error));
    const NS::Object* archives[] = {read.get()};
    pipeline->setBinaryArchives(NS::Array::array(archives, 1));
    auto state = NS::TransferPtr(device_->newComputePipelineState(
        pipeline.get(), MTL::PipelineOptionFailOnBinaryArchiveMiss, nullptr, &error));
    CHECK(state && error == nullptr);
  }

  NS::SharedPtr<MTL::Device> device_;
  NS::SharedPtr<MTL::CommandQueue> queue_;
  NS::SharedPtr<MTL::Buffer> x_, y_;
  NS::SharedPtr<MTL::Library> library_;
  NS::SharedPtr<MTL::Function> affine_;
  NS::SharedPtr<MTL::ComputePipelineState> pipeline_, reverse_;
};

}  // namespace

int main(int count, char** arguments) {
  NS::AutoreleasePool* pool = NS::AutoreleasePool::alloc()->init();
  Host().run(count > 1 ? arguments[1] : ".");
  pool->release();
  std::printf("%d checks failed\n", failures);
  return failures;
}
