// What stub libraries share: the stub driver's stream, and its device memory.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <functional>

namespace npusim::tests {

// The address at which the host reaches what the stub driver calls device memory.
inline float* host_floats(const void* address) {
  constexpr uintptr_t kBias = uintptr_t{1} << 60;
  return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(address) - kBias);
}

// Puts work on the stub driver's stream.
inline void enqueue(const std::function<void()>& work) {
  void* driver = dlopen(std::getenv("NPUSIM_CUDA_DRIVER"), RTLD_NOW);
  reinterpret_cast<void (*)(const std::function<void()>&)>(dlsym(driver, "stub_enqueue"))(work);
}

// Whether memory of the stub driver is of a pool, and so no other device's to reach.
inline bool is_pooled(const void* address) {
  void* driver = dlopen(std::getenv("NPUSIM_CUDA_DRIVER"), RTLD_NOW);
  return reinterpret_cast<int (*)(const void*)>(dlsym(driver, "stub_is_pooled"))(address) != 0;
}

// A number that a test sets in the environment.
inline long environment_number(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atol(value);
}

}  // namespace npusim::tests
