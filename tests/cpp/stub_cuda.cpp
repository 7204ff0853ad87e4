// A CUDA driver without a GPU, for tests: a shared library with the entry points that npusim uses.
// Memory of its devices is memory of the host behind addresses that only the stub can follow, so a
// host access to device memory faults. Kernels are the few below, found by name in cubins that say
// "<ELF header>copy.". Everything runs at once, in the calling thread.
//
// Tests steer it with stub_set and read it with stub_calls; other processes through the environment
// variables STUB_CUDA_DEVICES, STUB_CUDA_VERSION and STUB_CUDA_ARCH, and what setting() asks for.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr uintptr_t kBias = uintptr_t{1} << 60;  // device address minus host address
constexpr int kOutOfMemory = 2, kInvalidValue = 1, kNoDevice = 100, kInvalidImage = 200;
constexpr int kNotFound = 500;
constexpr size_t kTotalMemory = size_t{1} << 30;

std::mutex turn;
std::map<std::string, int> calls, settings;
std::map<uintptr_t, size_t> live;  // device address -> bytes
std::set<uintptr_t> pooled;        // those of them that came of a pool
std::vector<void*> contexts;       // of the process, for simplicity

int setting(const char* name, int otherwise) {
  const std::lock_guard<std::mutex> locked(turn);
  const auto found = settings.find(name);
  if (found != settings.end()) return found->second;
  const char* value = std::getenv((std::string("STUB_CUDA_") + name).c_str());
  return value == nullptr ? otherwise : std::atoi(value);
}

// Counts a call; what a test wants it to return, or 0.
int enter(const char* name) {
  {
    const std::lock_guard<std::mutex> locked(turn);
    ++calls[name];
  }
  return setting((std::string("fail ") + name).c_str(), 0);
}

#define ENTER(name) \
  if (const int wanted = enter(#name)) return wanted

// Kernels reach pinned memory of the host as well, where it is.
std::byte* host(uintptr_t address) {
  return reinterpret_cast<std::byte*>(address < kBias ? address : address - kBias);
}

int allocate(uintptr_t* to, size_t bytes) {
  const std::lock_guard<std::mutex> locked(turn);
  size_t used = 0;
  for (const auto& [address, size] : live) used += size;
  if (bytes > kTotalMemory - used) return kOutOfMemory;
  void* block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(block, 0xCD, bytes);  // never zero by chance
  *to = reinterpret_cast<uintptr_t>(block) + kBias;
  live[*to] = bytes;
  return 0;
}

int release(uintptr_t address) {
  const std::lock_guard<std::mutex> locked(turn);
  if (live.erase(address) == 0) return kInvalidValue;
  pooled.erase(address);
  std::free(host(address));
  return 0;
}

struct Function {
  const char* name;
  size_t params;
  void (*run)(void** params, int64_t threads);
};

template <typename T>
T* argument(void** params, size_t index) {
  return reinterpret_cast<T*>(host(*static_cast<uintptr_t*>(params[index])));
}

struct Failure {
  int code, padding;
  int64_t value, limit;
};

// Of cpp/cuda/exchange.cpp.
struct Link {
  uint32_t rank, ranks;
  uint64_t patience;
  uint32_t* epochs;
  uint32_t* stop;
  uint32_t* lost;
  uintptr_t mailboxes[8];
  uintptr_t gathered;
};

// What ranks bring to a gather: done when the last of them is there, as nothing waits here. Setting
// WRONG spoils what goes through mailboxes of devices, LOST has rank 0 lose the last rank in the
// gather of that number, and PAUSE has rank 0 take so many microseconds.
void gather(void** params, int64_t threads) {
  static std::map<uint32_t, std::pair<const std::byte*, std::byte*>> come;  // x and y by rank
  static int gathers = 0;
  static std::mutex coming;
  const Link& link = *argument<Link>(params, 2);
  const auto bytes = static_cast<size_t>(threads) * sizeof(float);
  const auto pause = [&] {
    if (link.rank != 0) return;
    std::this_thread::sleep_for(std::chrono::microseconds(setting("PAUSE", 0)));
  };
  if (link.gathered != 0) {  // NCCL has brought it
    pause();
    std::memcpy(argument<std::byte>(params, 1), host(link.gathered), link.ranks * bytes);
    return;
  }
  {
    const std::lock_guard<std::mutex> locked(coming);
    come[link.rank] = {argument<std::byte>(params, 0), argument<std::byte>(params, 1)};
  }
  pause();
  const std::lock_guard<std::mutex> locked(coming);
  if (come.size() < link.ranks) return;
  for (const auto& [to, places] : come) {
    for (const auto& [from, sources] : come) {
      std::memcpy(places.second + from * bytes, sources.first, bytes);
    }
    if (setting("WRONG", 0) != 0 && link.mailboxes[0] >= kBias) {
      places.second[0] = ~places.second[0];
    }
  }
  if (++gathers == setting("LOST", 0)) {
    *link.stop = 1;
    const uint32_t lost[] = {link.ranks, 5, 7, 6};
    std::memcpy(link.lost - std::size(lost) * link.rank, lost, sizeof lost);
  }
  come.clear();
}

// Elements: one float a thread.
const Function kFunctions[] = {
    {"copy", 2,
     [](void** params, int64_t threads) {
       const float* x = argument<float>(params, 0);
       std::memmove(argument<float>(params, 1), x, static_cast<size_t>(threads) * sizeof *x);
     }},
    {"gather", 3, gather},
    {"add", 3,
     [](void** params, int64_t threads) {
       const float *a = argument<float>(params, 0), *b = argument<float>(params, 1);
       float* y = argument<float>(params, 2);
       for (int64_t i = 0; i < threads; ++i) y[i] = a[i] + b[i];
     }},
    {"subtract", 3,
     [](void** params, int64_t threads) {
       const float *a = argument<float>(params, 0), *b = argument<float>(params, 1);
       float* y = argument<float>(params, 2);
       for (int64_t i = 0; i < threads; ++i) y[i] = a[i] - b[i];
     }},
    {"through_scratch", 3,
     [](void** params, int64_t threads) {
       const auto bytes = static_cast<size_t>(threads) * sizeof(float);
       std::memcpy(argument<float>(params, 2), argument<float>(params, 0), bytes);
       std::memcpy(argument<float>(params, 1), argument<float>(params, 2), bytes);
     }},
    {"copy_positive", 3,
     [](void** params, int64_t threads) {
       auto* failure = argument<Failure>(params, 2);
       for (int64_t i = 0; i < threads; ++i) {
         const float x = argument<float>(params, 0)[i];
         argument<float>(params, 1)[i] = x;
         if (x < 0 && failure->code == 0) *failure = {1, 0, static_cast<int64_t>(x), 0};
       }
     }},
};

struct Node {
  const Function* function;
  int64_t threads;
  std::vector<uintptr_t> values;
  std::function<void()> work;  // of a library, instead of a function
  std::vector<Node> child;     // or other nodes
};

void run(const Node& node) {
  if (node.work) return node.work();
  for (const Node& inner : node.child) run(inner);
  if (node.function == nullptr) return;
  std::vector<void*> params;
  for (const uintptr_t& value : node.values) params.push_back(const_cast<uintptr_t*>(&value));
  node.function->run(params.data(), node.threads);
}
struct NodeParams {
  const Function* function;
  unsigned grid[3], block[3], shared;
  void** params;
};

Node node_of(const NodeParams& params) {
  Node node{params.function, int64_t{params.grid[0]} * params.block[0], {}, {}, {}};
  for (size_t i = 0; i < node.function->params; ++i) {
    node.values.push_back(*static_cast<uintptr_t*>(params.params[i]));
  }
  return node;
}

struct Graph {
  std::vector<Node> nodes;
  size_t ordered = 0;  // nodes that the one in front precedes; one fewer than all in a whole graph

  // Whether a new node may stand after `before`, or be given what precedes it later.
  bool takes(const uintptr_t* before, size_t count) {
    if (count > 1 || (count == 1 && *before != nodes.size())) return false;
    ordered += count;
    return true;
  }
};
Graph* captured = nullptr;  // what launches go to while a stream is captured

}  // namespace

EXPORT void stub_set(const char* name, int value) {
  const std::lock_guard<std::mutex> locked(turn);
  settings[name] = value;
}
EXPORT int stub_calls(const char* name) {
  const std::lock_guard<std::mutex> locked(turn);
  return calls[name];
}
// Work of a library on a stream: done at once, or noted down.
EXPORT void stub_enqueue(const std::function<void()>& work) {
  if (captured == nullptr) return work();
  captured->nodes.push_back({nullptr, 0, {}, work, {}});
}
EXPORT int stub_live() {
  const std::lock_guard<std::mutex> locked(turn);
  return static_cast<int>(live.size());
}

EXPORT int stub_is_pooled(const void* address) {
  const std::lock_guard<std::mutex> locked(turn);
  const auto after = live.upper_bound(reinterpret_cast<uintptr_t>(address));
  return after != live.begin() && pooled.contains(std::prev(after)->first) ? 1 : 0;
}

EXPORT int cuInit(unsigned) {
  ENTER(cuInit);
  return setting("DEVICES", 1) == 0 ? kNoDevice : 0;
}
EXPORT int cuDriverGetVersion(int* version) {
  *version = setting("VERSION", 13000);
  return 0;
}
EXPORT int cuGetErrorName(int, const char** text) {
  *text = "CUDA_ERROR_STUB";
  return 0;
}
EXPORT int cuGetErrorString(int, const char** text) {
  *text = "the stub was told to fail";
  return 0;
}
EXPORT int cuDeviceGetCount(int* count) {
  *count = setting("DEVICES", 1);
  return 0;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
EXPORT int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Stub GPU", static_cast<size_t>(length));
  return 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const int arch = device == 1 ? setting("ARCH_1", setting("ARCH", 90)) : setting("ARCH", 90);
  *value = attribute == 75    ? arch / 10
           : attribute == 76  ? arch % 10
           : attribute == 97  ? 227 << 10
           : attribute == 115 ? setting("POOLS", 1)
                              : 0;
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = kTotalMemory;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
  ENTER(cuDevicePrimaryCtxRetain);
  *context = &contexts;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  ENTER(cuDevicePrimaryCtxRelease);
  return 0;
}
EXPORT int cuCtxGetCurrent(void** context) {
  *context = setting("CURRENT", 0) == 0 ? nullptr : &contexts;
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(void*) {
  ENTER(cuCtxPushCurrent);
  return 0;
}
EXPORT int cuCtxPopCurrent_v2(void**) {
  ENTER(cuCtxPopCurrent);
  return 0;
}
EXPORT int cuDeviceCanAccessPeer(int* can, int, int) {
  ENTER(cuDeviceCanAccessPeer);
  *can = setting("PEERS", 1);
  return 0;
}
EXPORT int cuCtxEnablePeerAccess(void*, unsigned) {
  ENTER(cuCtxEnablePeerAccess);
  return 0;
}
EXPORT int cuCtxSynchronize() {
  ENTER(cuCtxSynchronize);
  return 0;
}
EXPORT int cuStreamCreate(void** stream, unsigned) {
  ENTER(cuStreamCreate);
  *stream = new int(0);
  return 0;
}
EXPORT int cuStreamDestroy_v2(void* stream) {
  ENTER(cuStreamDestroy);
  delete static_cast<int*>(stream);
  return 0;
}
EXPORT int cuStreamSynchronize(void*) {
  ENTER(cuStreamSynchronize);
  return 0;
}
EXPORT int cuStreamQuery(void*) {
  ENTER(cuStreamQuery);
  return 0;
}
EXPORT int cuStreamWaitEvent(void*, void*, unsigned) {
  ENTER(cuStreamWaitEvent);
  return 0;
}
EXPORT int cuStreamBeginCapture_v2(void*, int) {
  ENTER(cuStreamBeginCapture);
  captured = new Graph;
  return 0;
}
EXPORT int cuStreamEndCapture(void*, Graph** graph) {
  ENTER(cuStreamEndCapture);
  if (captured != nullptr && !captured->nodes.empty()) {
    captured->ordered = captured->nodes.size() - 1;  // as the stream was
  }
  *graph = captured;
  captured = nullptr;
  return 0;
}
EXPORT int cuEventCreate(void** event, unsigned) {
  *event = new int(0);
  return 0;
}
EXPORT int cuEventDestroy_v2(void* event) {
  delete static_cast<int*>(event);
  return 0;
}
EXPORT int cuEventRecord(void*, void*) {
  ENTER(cuEventRecord);
  return 0;
}
EXPORT int cuEventRecordWithFlags(void*, void*, unsigned) {
  return captured == nullptr ? kInvalidValue : 0;
}
EXPORT int cuEventSynchronize(void*) {
  ENTER(cuEventSynchronize);
  return 0;
}
EXPORT int cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 0.25F;
  return 0;
}
EXPORT int cuMemAlloc_v2(uintptr_t* address, size_t bytes) {
  ENTER(cuMemAlloc);
  return allocate(address, bytes);
}
EXPORT int cuMemFree_v2(uintptr_t address) {
  ENTER(cuMemFree);
  return release(address);
}
EXPORT int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = 4096;
  *total = kTotalMemory;
  return 0;
}
EXPORT int cuMemPoolCreate(void** pool, const void*) {
  ENTER(cuMemPoolCreate);
  *pool = new int(0);
  return 0;
}
EXPORT int cuMemPoolDestroy(void* pool) {
  ENTER(cuMemPoolDestroy);
  delete static_cast<int*>(pool);
  return 0;
}
EXPORT int cuMemPoolSetAttribute(void*, int, void*) {
  return 0;
}
EXPORT int cuMemAllocFromPoolAsync(uintptr_t* address, size_t bytes, void*, void*) {
  ENTER(cuMemAllocFromPoolAsync);
  const int refused = allocate(address, bytes);
  const std::lock_guard<std::mutex> locked(turn);
  if (refused == 0) pooled.insert(*address);
  return refused;
}
EXPORT int cuMemFreeAsync(uintptr_t address, void*) {
  ENTER(cuMemFreeAsync);
  return release(address);
}
EXPORT int cuMemHostAlloc(void** block, size_t bytes, unsigned) {
  ENTER(cuMemHostAlloc);
  *block = std::malloc(bytes);
  return 0;
}
EXPORT int cuMemFreeHost(void* block) {
  ENTER(cuMemFreeHost);
  std::free(block);
  return 0;
}
EXPORT int cuMemsetD8Async(uintptr_t address, unsigned char value, size_t bytes, void*) {
  ENTER(cuMemsetD8Async);
  std::memset(host(address), value, bytes);
  return 0;
}
EXPORT int cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t bytes, void*) {
  ENTER(cuMemcpyHtoDAsync);
  std::memcpy(host(to), from, bytes);
  return 0;
}
EXPORT int cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, void*) {
  ENTER(cuMemcpyDtoHAsync);
  std::memcpy(to, host(from), bytes);
  return 0;
}
EXPORT int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void*) {
  ENTER(cuMemcpyDtoDAsync);
  std::memmove(host(to), host(from), bytes);
  return 0;
}
EXPORT int cuPointerGetAttribute(void* value, int, uintptr_t) {
  *static_cast<int*>(value) = 0;
  return 0;
}
EXPORT int cuModuleLoadData(std::string** module, const void* image) {
  ENTER(cuModuleLoadData);
  constexpr size_t kElfHeader = 64;
  const char* text = static_cast<const char*>(image) + kElfHeader;
  if (std::memcmp(image,
                  "\x7f"
                  "ELF",
                  4) != 0) {
    return kInvalidImage;
  }
  *module = new std::string(text, std::strcspn(text, "."));
  return 0;
}
EXPORT int cuModuleUnload(std::string* module) {
  ENTER(cuModuleUnload);
  delete module;
  return 0;
}
EXPORT int cuModuleGetFunction(const Function** function, std::string* module, const char* name) {
  ENTER(cuModuleGetFunction);
  if (*module != name) return kNotFound;
  for (const Function& known : kFunctions) {
    if (std::strcmp(known.name, name) != 0) continue;
    *function = &known;
    return 0;
  }
  return kNotFound;
}
EXPORT int cuFuncSetAttribute(const Function*, int, int) {
  ENTER(cuFuncSetAttribute);
  return 0;
}
EXPORT int cuFuncGetParamInfo(const Function* function, size_t index, size_t* offset,
                              size_t* size) {
  if (index >= function->params) return kInvalidValue;
  *offset = index * sizeof(void*);
  *size = sizeof(void*);
  return 0;
}
// A map begins with the address of its matrix.
EXPORT int cuTensorMapEncodeTiled(void* map, int, unsigned, uintptr_t address, const void*,
                                  const void*, const void*, const void*, int, int, int, int) {
  ENTER(cuTensorMapEncodeTiled);
  std::memcpy(map, &address, sizeof address);
  return 0;
}

EXPORT int cuLaunchKernel(const Function* function, unsigned x, unsigned, unsigned, unsigned block,
                          unsigned, unsigned, unsigned, void*, void** params, void**) {
  ENTER(cuLaunchKernel);
  if (captured != nullptr) {
    captured->nodes.push_back(node_of({function, {x, 1, 1}, {block, 1, 1}, 0, params}));
    return 0;
  }
  function->run(params, int64_t{x} * block);
  return 0;
}
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  const void* attributes;
  unsigned attribute_count;
};
EXPORT int cuLaunchKernelEx(const LaunchConfig* config, const Function* function, void** params,
                            void**) {
  ENTER(cuLaunchKernelEx);
  function->run(params, int64_t{config->grid[0]} * config->block[0]);
  return 0;
}
EXPORT int cuGraphCreate(Graph** graph, unsigned) {
  ENTER(cuGraphCreate);
  *graph = new Graph;
  return 0;
}
EXPORT int cuGraphDestroy(Graph* graph) {
  ENTER(cuGraphDestroy);
  delete graph;
  return 0;
}
EXPORT int cuGraphAddKernelNode_v2(uintptr_t* node, Graph* graph, const uintptr_t* before,
                                   size_t count, const NodeParams* params) {
  ENTER(cuGraphAddKernelNode);
  if (!graph->takes(before, count)) return kInvalidValue;
  graph->nodes.push_back(node_of(*params));
  *node = graph->nodes.size();
  return 0;
}
EXPORT int cuGraphAddChildGraphNode(uintptr_t* node, Graph* graph, const uintptr_t* before,
                                    size_t count, const Graph* child) {
  ENTER(cuGraphAddChildGraphNode);
  if (!graph->takes(before, count)) return kInvalidValue;
  graph->nodes.push_back({nullptr, 0, {}, {}, child->nodes});
  *node = graph->nodes.size();
  return 0;
}
// The programmatic edge of two kernels beside each other.
EXPORT int cuGraphAddDependencies_v2(Graph* graph, const uintptr_t* from, const uintptr_t* to,
                                     const void*, size_t count) {
  ENTER(cuGraphAddDependencies);
  if (count != 1 || *to != graph->nodes.size() || *from + 1 != *to) return kInvalidValue;
  if (graph->nodes[*from - 1].function == nullptr || graph->nodes.back().function == nullptr) {
    return kInvalidValue;
  }
  ++graph->ordered;
  return 0;
}
EXPORT int cuGraphExecChildGraphNodeSetParams(Graph* executable, uintptr_t node,
                                              const Graph* child) {
  ENTER(cuGraphExecChildGraphNodeSetParams);
  executable->nodes.at(node - 1).child = child->nodes;
  return 0;
}
EXPORT int cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
  ENTER(cuGraphInstantiate);
  if (!graph->nodes.empty() && graph->ordered + 1 != graph->nodes.size()) return kInvalidValue;
  *executable = new Graph(*graph);
  return 0;
}
EXPORT int cuGraphExecKernelNodeSetParams_v2(Graph* executable, uintptr_t node,
                                             const NodeParams* params) {
  ENTER(cuGraphExecKernelNodeSetParams);
  executable->nodes.at(node - 1) = node_of(*params);
  return 0;
}
EXPORT int cuGraphUpload(Graph*, void*) {
  ENTER(cuGraphUpload);
  return 0;
}
EXPORT int cuGraphLaunch(Graph* executable, void*) {
  ENTER(cuGraphLaunch);
  for (const Node& node : executable->nodes) run(node);
  return 0;
}
EXPORT int cuGraphExecDestroy(Graph* executable) {
  ENTER(cuGraphExecDestroy);
  delete executable;
  return 0;
}
