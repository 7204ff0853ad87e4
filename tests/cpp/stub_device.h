// The stub driver (stub_cuda.cpp) as tests use it: its own interface, memory on its device, and a
// program of its kernels.
#pragma once

#include <dlfcn.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cpp/runtime/device.h"
#include "cpp/runtime/executor.h"
#include "tests/cpp/check.h"
#include "tests/cpp/copy_program.h"
#include "tests/cpp/cuda_image.h"

namespace npusim::tests {

using Floats = std::vector<float>;

// The stub's own interface.
class Stub {
 public:
  Stub() : library_(dlopen(NPUSIM_STUB_CUDA, RTLD_NOW)) {}
  void set(const std::string& what, int value) {
    reinterpret_cast<void (*)(const char*, int)>(dlsym(library_, "stub_set"))(what.c_str(), value);
  }
  int calls(const char* name) {
    return reinterpret_cast<int (*)(const char*)>(dlsym(library_, "stub_calls"))(name);
  }
  int live() { return reinterpret_cast<int (*)()>(dlsym(library_, "stub_live"))(); }

 private:
  void* library_;
};

inline Stub stub;

inline std::shared_ptr<Device> cuda() {
  return open_device("cuda");
}

inline std::shared_ptr<Memory> put(Device& device, const Floats& values) {
  auto memory = device.allocate(static_cast<int64_t>(values.size() * 4));
  device.upload(*memory, 0, std::as_bytes(std::span(values)));
  return memory;
}

inline Floats get(Device& device, const Memory& memory) {
  Floats values(static_cast<size_t>(memory.bytes()) / 4);
  device.download(std::as_writable_bytes(std::span(values)), memory, 0);
  return values;
}

inline Binding bytes_of(const Memory& memory) {
  return memory.range();
}

// x -> temporary -> y by the stub's `entry`, with images that live here.
class StubProgram {
 public:
  explicit StubProgram(const std::string& entry = "copy", const std::string& more = "",
                       int64_t count = 8)
      : program_(count) {
    const uint32_t x = program_.input(), y = program_.output();
    const uint32_t between = program_.buffer(BufferKind::kTemp);
    program_->methods[0].arena_bytes = count * 4;
    program_.copy(x, between);
    program_.copy(between, y);
    program_->target = "cuda:sm_90";
    image(stub_image(entry, count, more));
  }
  void image(Bytes bytes) {
    images_.push_back(std::move(bytes));
    program_->kernels[0].image = images_.back();
  }
  Program* operator->() { return &*program_; }
  std::shared_ptr<const Program> get() const { return program_.get(); }

 private:
  CopyProgram program_;
  std::deque<Bytes> images_;
};

// What was taken from the driver has been given back, when all devices are closed. `refused` of
// each kind were never given.
inline void check_given_back(int refused_modules, int refused_streams) {
  check(stub.live() == 0, "memory of the device");
  check(stub.calls("cuModuleUnload") == stub.calls("cuModuleLoadData") - refused_modules,
        "modules");
  check(stub.calls("cuGraphExecDestroy") == stub.calls("cuGraphInstantiate"), "graphs");
  check(stub.calls("cuMemFreeHost") == stub.calls("cuMemHostAlloc"), "pinned memory");
  check(stub.calls("cuDevicePrimaryCtxRelease") == stub.calls("cuDevicePrimaryCtxRetain"),
        "contexts");
  check(stub.calls("cuCtxPopCurrent") == stub.calls("cuCtxPushCurrent"), "current contexts");
  check(stub.calls("cuStreamDestroy") == stub.calls("cuStreamCreate") - refused_streams, "streams");
  check(stub.calls("cuMemPoolDestroy") == stub.calls("cuMemPoolCreate"), "pools");
}

}  // namespace npusim::tests
