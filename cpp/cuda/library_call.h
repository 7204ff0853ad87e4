// A library's computation in place of a kernel's launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "cpp/cuda/driver.h"

namespace npusim::cuda {

class LibraryCall {
 public:
  virtual ~LibraryCall() = default;
  // Bytes of memory that run() works in.
  virtual int64_t scratch() const noexcept = 0;
  // The library, its version and the plan: "cublaslt 13.1.0, plan 0".
  virtual std::string description() const = 0;
  // Puts the work on a stream, which may be being captured. `operands` are device addresses, those
  // of the command in order; the context must be current. Throws Error(kDevice).
  virtual void run(std::span<std::byte* const> operands, std::byte* scratch,
                   StreamHandle stream) = 0;
};

}  // namespace npusim::cuda
