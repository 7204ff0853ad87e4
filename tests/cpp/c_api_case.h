// What tests of the C interface share: a status held to what it must be, and a program that is
// loaded.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "include/npusim/npusim.h"
#include "tests/cpp/check.h"

namespace npusim::tests {

inline void check_status(npusim_status got, npusim_status wanted, std::string_view words = "",
                         const std::source_location at = std::source_location::current()) {
  const std::string message = got == NPUSIM_OK ? "" : npusim_last_error();
  if (got != wanted) {
    fail(std::string("status ") + npusim_status_name(got) + " (" + message + "), expected " +
             npusim_status_name(wanted),
         at);
  }
  if (message.find(words) == message.npos) {
    fail("expected '" + std::string(words) + "' in: " + message, at);
  }
}
#define CHECK_OK(call) check_status(call, NPUSIM_OK)

inline std::string program_path(const char* name) {
  return std::string(NPUSIM_SOURCE_DIR) + "/tests/cpp/programs/" + name;
}

struct Loaded {
  npusim_device* device = nullptr;
  npusim_program* program = nullptr;
  npusim_executor* executor = nullptr;

  explicit Loaded(const char* name, int (*should_cancel)(void*) = nullptr) {
    npusim_option threads = {sizeof threads, "threads", "1"};
    npusim_device_options options = NPUSIM_DEVICE_OPTIONS_INIT;
    options.options = &threads;
    options.option_count = 1;
    options.should_cancel = should_cancel;
    CHECK_OK(npusim_device_open("cpu", &options, &device));
    CHECK_OK(npusim_program_open(program_path(name).c_str(), &program));
    CHECK_OK(npusim_executor_create(program, device, &executor));
  }
  ~Loaded() {
    npusim_device_free(device);
    npusim_program_free(program);
    npusim_executor_free(executor);
  }
};

inline npusim_tensor floats(std::vector<float>& values, const std::vector<int64_t>& shape,
                            const char* name = nullptr) {
  npusim_tensor tensor = NPUSIM_TENSOR_INIT;
  tensor.name = name;
  tensor.data = values.data();
  tensor.bytes = values.size() * sizeof(float);
  tensor.shape = shape.data();
  tensor.rank = shape.size();
  tensor.dtype = NPUSIM_FLOAT32;
  return tensor;
}

}  // namespace npusim::tests
