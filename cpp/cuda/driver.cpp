#include "cpp/cuda/driver.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "cpp/cuda/library.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr int kOldestVersion = 12000;  // graphs whose kernels can be given new parameters

// Faults of the device or of what ran there: the driver answers every further call of the process
// with the same.
constexpr Result kLost[] = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kDevice, why);
}

template <typename Function>
void resolve(platform::LibraryHandle library, const char* symbol, Function& to) {
  to = reinterpret_cast<Function>(platform::library_symbol(library, symbol));
}

// Fills the table; the name of a function the library lacks, or null.
const char* resolve_all(platform::LibraryHandle library, Driver& driver) {
  const char* missing = nullptr;
  const auto need = [&](const char* symbol, auto& to) {
    resolve(library, symbol, to);
    if (to == nullptr) missing = symbol;
  };
  need("cuInit", driver.init);
  need("cuGetErrorName", driver.get_error_name);
  need("cuGetErrorString", driver.get_error_string);
  need("cuDeviceGetCount", driver.device_get_count);
  need("cuDeviceGet", driver.device_get);
  need("cuDeviceGetName", driver.device_get_name);
  need("cuDeviceGetAttribute", driver.device_get_attribute);
  need("cuDeviceTotalMem_v2", driver.device_total_mem);
  need("cuDevicePrimaryCtxRetain", driver.primary_ctx_retain);
  need("cuDevicePrimaryCtxRelease_v2", driver.primary_ctx_release);
  need("cuCtxGetCurrent", driver.ctx_get_current);
  need("cuCtxPushCurrent_v2", driver.ctx_push);
  need("cuCtxPopCurrent_v2", driver.ctx_pop);
  need("cuCtxSynchronize", driver.ctx_synchronize);
  need("cuDeviceCanAccessPeer", driver.device_can_access_peer);
  need("cuCtxEnablePeerAccess", driver.ctx_enable_peer_access);
  need("cuStreamCreate", driver.stream_create);
  need("cuStreamDestroy_v2", driver.stream_destroy);
  need("cuStreamSynchronize", driver.stream_synchronize);
  need("cuStreamQuery", driver.stream_query);
  need("cuStreamWaitEvent", driver.stream_wait_event);
  need("cuStreamBeginCapture_v2", driver.stream_begin_capture);
  need("cuStreamEndCapture", driver.stream_end_capture);
  need("cuEventCreate", driver.event_create);
  need("cuEventDestroy_v2", driver.event_destroy);
  need("cuEventRecord", driver.event_record);
  need("cuEventRecordWithFlags", driver.event_record_with_flags);
  need("cuEventSynchronize", driver.event_synchronize);
  need("cuEventElapsedTime", driver.event_elapsed_time);
  need("cuMemAlloc_v2", driver.mem_alloc);
  need("cuMemFree_v2", driver.mem_free);
  need("cuMemGetInfo_v2", driver.mem_get_info);
  need("cuMemPoolCreate", driver.pool_create);
  need("cuMemPoolDestroy", driver.pool_destroy);
  need("cuMemPoolSetAttribute", driver.pool_set_attribute);
  need("cuMemAllocFromPoolAsync", driver.mem_alloc_from_pool);
  need("cuMemFreeAsync", driver.mem_free_async);
  need("cuMemHostAlloc", driver.mem_host_alloc);
  need("cuMemFreeHost", driver.mem_free_host);
  need("cuMemsetD8Async", driver.memset_async);
  need("cuMemcpyHtoDAsync_v2", driver.copy_to_device);
  need("cuMemcpyDtoHAsync_v2", driver.copy_to_host);
  need("cuMemcpyDtoDAsync_v2", driver.copy_on_device);
  need("cuPointerGetAttribute", driver.pointer_get_attribute);
  need("cuModuleLoadData", driver.module_load_data);
  need("cuModuleUnload", driver.module_unload);
  need("cuModuleGetFunction", driver.module_get_function);
  need("cuFuncSetAttribute", driver.func_set_attribute);
  need("cuLaunchKernel", driver.launch_kernel);
  need("cuTensorMapEncodeTiled", driver.tensor_map_encode_tiled);
  need("cuLaunchKernelEx", driver.launch_kernel_ex);
  need("cuGraphCreate", driver.graph_create);
  need("cuGraphDestroy", driver.graph_destroy);
  need("cuGraphAddKernelNode_v2", driver.graph_add_kernel_node);
  need("cuGraphAddChildGraphNode", driver.graph_add_child);
  need("cuGraphExecChildGraphNodeSetParams", driver.graph_exec_set_child);
  need("cuGraphInstantiateWithFlags", driver.graph_instantiate);
  need("cuGraphExecKernelNodeSetParams_v2", driver.graph_exec_set_params);
  need("cuGraphUpload", driver.graph_upload);
  need("cuGraphLaunch", driver.graph_launch);
  need("cuGraphExecDestroy", driver.graph_exec_destroy);
  resolve(library, "cuFuncGetParamInfo", driver.func_get_param_info);
  resolve(library, "cuGraphAddDependencies_v2", driver.graph_add_dependencies);
  return missing;
}

}  // namespace

Driver Driver::load(const std::string& path) {
  const platform::LibraryHandle library = platform::open_library(path);
  if (library == nullptr) {
    refuse("there is no CUDA driver on this machine (" + path +
           " cannot be loaded). Install NVIDIA's driver, or choose another device.");
  }
  Driver driver{};
  driver.path = platform::library_path(library);
  resolve(library, "cuDriverGetVersion", driver.driver_get_version);
  if (driver.driver_get_version == nullptr ||
      driver.driver_get_version(&driver.version) != kSuccess) {
    refuse(driver.path + " is no CUDA driver: it does not tell its version");
  }
  const char* missing = resolve_all(library, driver);
  if (driver.version < kOldestVersion) {
    refuse("the CUDA driver is too old: it speaks CUDA " + version_text(driver.version) +
           ", npusim needs " + version_text(kOldestVersion) + ". Update NVIDIA's driver.");
  }
  if (missing != nullptr) {
    refuse(driver.path + " is no whole CUDA driver: it has no " + std::string(missing));
  }
  return driver;
}

std::string Driver::error_text(Result result) const {
  const char *name = nullptr, *text = nullptr;
  get_error_name(result, &name);
  get_error_string(result, &text);
  if (name == nullptr || text == nullptr) return "error " + std::to_string(result);
  const bool lost = std::find(std::begin(kLost), std::end(kLost), result) != std::end(kLost);
  return std::string(text) + " (" + name + ")" +
         (lost ? ". The device is lost to this process: start the process again." : "");
}

void Driver::check(Result result, const char* what) const {
  if (result == kSuccess) return;
  const bool forked = fork_depth() != opened_at;
  refuse("CUDA could not " + std::string(what) + ": " + error_text(result) +
         (forked ? ". CUDA does not survive a fork: open devices in the child alone, or start it "
                   "with multiprocessing's 'spawn'."
                 : ""));
}

const Driver& driver() {
  static const Driver loaded = [] {
    const char* other = std::getenv("NPUSIM_CUDA_DRIVER");
    Driver found =
        Driver::load(other != nullptr && *other != '\0'
                         ? other
                         : platform::cuda_library_name(platform::CudaLibrary::kDriver, 1));
    const Result started = found.init(0);
    int devices = 0;
    if (started == kSuccess) found.check(found.device_get_count(&devices), "count its devices");
    if (started == kNoDevice || (started == kSuccess && devices == 0)) {
      refuse("the CUDA driver finds no device (" + found.path +
             "). Is the GPU visible to this process? See CUDA_VISIBLE_DEVICES.");
    }
    found.check(started, "start its driver");
    return found;
  }();
  return loaded;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace npusim::cuda
