// The CUDA driver, found when the program runs: nothing here is linked, and no CUDA header is
// needed to build. Types and entry points are those of the driver's public ABI (cuda.h), as far as
// npusim uses them.
//
// The environment variable NPUSIM_CUDA_DRIVER names another library than libcuda.so.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cpp/platform/forks.h"

namespace npusim::cuda {

using Result = int;  // CUresult
constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kNoDevice = 100;

using DeviceHandle = int;                  // CUdevice
using DeviceAddress = unsigned long long;  // CUdeviceptr
using ContextHandle = struct CUctx_st*;
using StreamHandle = struct CUstream_st*;
using EventHandle = struct CUevent_st*;
using ModuleHandle = struct CUmod_st*;
using FunctionHandle = struct CUfunc_st*;
using PoolHandle = struct CUmemPoolHandle_st*;
using GraphHandle = struct CUgraph_st*;
using GraphNodeHandle = struct CUgraphNode_st*;
using GraphExecHandle = struct CUgraphExec_st*;

enum DeviceAttribute : int {
  kComputeMajor = 75,
  kComputeMinor = 76,
  kMostSharedMemory = 97,  // dynamic shared memory a block can ask for
  kHasMemoryPools = 115,
};
constexpr Result kNotReady = 600, kPeerAccessAlready = 704;
enum FunctionAttribute : int { kMaxDynamicShared = 8, kSharedCarveout = 9 };
enum PoolAttribute : int { kReleaseThreshold = 4 };
enum PointerAttribute : int { kDeviceOrdinal = 9 };
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventWithoutTiming = 2;
constexpr unsigned kEventExternal = 1;  // while a stream is captured: a node of the graph
constexpr int kCaptureRelaxed = 2;      // allows what loading code does
// The default stream of a process, and of a thread, as handles: neither is ever destroyed.
constexpr uintptr_t kLegacyStream = 1, kPerThreadStream = 2;

// CUmemPoolProps
struct PoolProps {
  int allocation_type = 1;  // pinned, the only one there is
  int handle_types = 0;
  int location_type = 1;  // a device
  int location_id = 0;
  void* security_attributes = nullptr;
  size_t max_size = 0;
  unsigned char reserved[56] = {};
};

// CUDA_KERNEL_NODE_PARAMS_v2
struct KernelNodeParams {
  FunctionHandle function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  void** params;
  void** extra;
  void* kernel;
  ContextHandle context;
};

// CUlaunchAttribute
struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    int flag;
    char reserved[64];
  };
};
// The kernel may start when all blocks of the one before have let it, or ended.
constexpr LaunchAttribute kProgrammaticLaunch = {6, {}, {1}};

// CUlaunchConfig
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  StreamHandle stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};

// CUgraphEdgeData
struct GraphEdge {
  unsigned char from_port, to_port;
  unsigned char type;
  unsigned char reserved[5];
};
// A kernel may start when all blocks of the one before have let it, or ended; it waits for the
// results itself.
constexpr GraphEdge kProgrammaticEdge = {1, 0, 1, {}};

// The entry points, by the names of cuda.h without "cu".
struct Driver {
  // Throws Error(kDevice), in a sentence for people, when there is no driver at `path` or it is too
  // old. Does not look for devices.
  static Driver load(const std::string& path);

  uint32_t opened_at = fork_depth();  // what is loaded before a fork is of no use behind it
  std::string path;                   // where the library lies
  int version = 0;                    // 13000 for CUDA 13.0: the newest that the driver speaks

  Result (*init)(unsigned flags);
  Result (*driver_get_version)(int*);
  Result (*get_error_name)(Result, const char**);
  Result (*get_error_string)(Result, const char**);
  Result (*device_get_count)(int*);
  Result (*device_get)(DeviceHandle*, int ordinal);
  Result (*device_get_name)(char*, int length, DeviceHandle);
  Result (*device_get_attribute)(int*, int attribute, DeviceHandle);
  Result (*device_total_mem)(size_t*, DeviceHandle);
  Result (*primary_ctx_retain)(ContextHandle*, DeviceHandle);
  Result (*primary_ctx_release)(DeviceHandle);
  Result (*ctx_get_current)(ContextHandle*);
  Result (*ctx_push)(ContextHandle);
  Result (*ctx_pop)(ContextHandle*);
  Result (*ctx_synchronize)();
  // Of one device with another's memory; what they need is in every driver that has several.
  Result (*device_can_access_peer)(int*, DeviceHandle, DeviceHandle peer);
  Result (*ctx_enable_peer_access)(ContextHandle peer, unsigned flags);
  Result (*stream_create)(StreamHandle*, unsigned flags);
  Result (*stream_destroy)(StreamHandle);
  Result (*stream_synchronize)(StreamHandle);
  Result (*stream_query)(StreamHandle);
  Result (*stream_wait_event)(StreamHandle, EventHandle, unsigned flags);
  Result (*stream_begin_capture)(StreamHandle, int mode);
  Result (*stream_end_capture)(StreamHandle, GraphHandle*);
  Result (*event_create)(EventHandle*, unsigned flags);
  Result (*event_destroy)(EventHandle);
  Result (*event_record)(EventHandle, StreamHandle);
  Result (*event_record_with_flags)(EventHandle, StreamHandle, unsigned flags);
  Result (*event_synchronize)(EventHandle);
  Result (*event_elapsed_time)(float* milliseconds, EventHandle from, EventHandle to);
  Result (*mem_alloc)(DeviceAddress*, size_t);
  Result (*mem_free)(DeviceAddress);
  Result (*mem_get_info)(size_t* free, size_t* total);
  Result (*pool_create)(PoolHandle*, const PoolProps*);
  Result (*pool_destroy)(PoolHandle);
  Result (*pool_set_attribute)(PoolHandle, int attribute, void* value);
  Result (*mem_alloc_from_pool)(DeviceAddress*, size_t, PoolHandle, StreamHandle);
  Result (*mem_free_async)(DeviceAddress, StreamHandle);
  Result (*mem_host_alloc)(void**, size_t, unsigned flags);
  Result (*mem_free_host)(void*);
  Result (*memset_async)(DeviceAddress, unsigned char, size_t, StreamHandle);
  Result (*copy_to_device)(DeviceAddress, const void*, size_t, StreamHandle);
  Result (*copy_to_host)(void*, DeviceAddress, size_t, StreamHandle);
  Result (*copy_on_device)(DeviceAddress, DeviceAddress, size_t, StreamHandle);
  Result (*pointer_get_attribute)(void*, int attribute, DeviceAddress);
  Result (*module_load_data)(ModuleHandle*, const void*);
  Result (*module_unload)(ModuleHandle);
  Result (*module_get_function)(FunctionHandle*, ModuleHandle, const char* name);
  Result (*func_set_attribute)(FunctionHandle, int attribute, int value);
  // Null before CUDA 12.4.
  Result (*tensor_map_encode_tiled)(void* map, int type, uint32_t rank, DeviceAddress,
                                    const uint64_t* extents, const uint64_t* strides,
                                    const uint32_t* box, const uint32_t* steps, int interleave,
                                    int swizzle, int promotion, int fill);
  Result (*func_get_param_info)(FunctionHandle, size_t index, size_t* offset, size_t* size);
  Result (*launch_kernel)(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned shared, StreamHandle, void** params, void** extra);
  Result (*launch_kernel_ex)(const LaunchConfig*, FunctionHandle, void** params, void** extra);
  Result (*graph_create)(GraphHandle*, unsigned flags);
  Result (*graph_destroy)(GraphHandle);
  Result (*graph_add_kernel_node)(GraphNodeHandle*, GraphHandle, const GraphNodeHandle*, size_t,
                                  const KernelNodeParams*);
  // Null before CUDA 12.3.
  Result (*graph_add_dependencies)(GraphHandle, const GraphNodeHandle* from,
                                   const GraphNodeHandle* to, const GraphEdge*, size_t);
  Result (*graph_add_child)(GraphNodeHandle*, GraphHandle, const GraphNodeHandle*, size_t,
                            GraphHandle child);
  Result (*graph_exec_set_child)(GraphExecHandle, GraphNodeHandle, GraphHandle child);
  Result (*graph_instantiate)(GraphExecHandle*, GraphHandle, unsigned long long flags);
  Result (*graph_exec_set_params)(GraphExecHandle, GraphNodeHandle, const KernelNodeParams*);
  Result (*graph_upload)(GraphExecHandle, StreamHandle);
  Result (*graph_launch)(GraphExecHandle, StreamHandle);
  Result (*graph_exec_destroy)(GraphExecHandle);

  // Throws Error(kDevice) that says what could not be done, and why, unless `result` is success.
  void check(Result result, const char* what) const;
  std::string error_text(Result result) const;
};

// The driver of this process, loaded and initialised by the first call. Throws as Driver::load, and
// Error(kDevice) when there is no device.
const Driver& driver();

// "13.0" of 13000.
std::string version_text(int version);

}  // namespace npusim::cuda
