// How the runtime reports failure: one exception type with a code that says who is at fault.
// Thrown while loading, binding and starting a run; never from a worker thread or a destructor.
#pragma once

#include <stdexcept>
#include <string>

namespace npusim {

enum class ErrorCode {
  kFormat,   // the file is not a sound .npubin (or safetensors): truncated, corrupt, hostile
  kVersion,  // a sound file of a version, feature or kernel this runtime does not have
  kWeights,  // the checkpoint does not fit the program: missing tensor, wrong shape or dtype
  kInput,    // the caller's argument is wrong: count, shape, dtype, device, unknown name
  kDevice,   // the device is missing, out of memory, or failed
  kLimit,    // an option's value, or a request, is outside what is possible
  kData,     // the run met a value it cannot serve (an index out of range)
  kBusy,     // the executor is already running on another thread
  kIo,       // a file cannot be opened, read or mapped
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace npusim
