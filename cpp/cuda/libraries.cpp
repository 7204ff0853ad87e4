#include "cpp/cuda/libraries.h"

#include <cstdlib>
#include <mutex>
#include <string_view>

#include "cpp/cuda/cublaslt.h"
#include "cpp/cuda/cudnn.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

bool switched_off() {
  const char* value = std::getenv("NPUSIM_CUDA_LIBRARIES");
  return value != nullptr && std::string_view(value) == "off";
}

// The library, opened at most once; null where it is not there or does not start.
template <typename Handle, typename... Arguments>
void seek(bool& sought, std::shared_ptr<const Handle>& to, const Arguments&... arguments) {
  if (sought) return;
  sought = true;
  try {
    to = std::make_shared<const Handle>(arguments...);
  } catch (const Error&) {
    // The kernels of the program do the work; `npusim doctor` says what is missing.
  }
}

}  // namespace

Libraries::Libraries(std::shared_ptr<const Context> context, std::vector<std::string> folders)
    : context_(std::move(context)), folders_(std::move(folders)), off_(switched_off()) {}

Libraries::~Libraries() = default;

std::unique_ptr<LibraryCall> Libraries::call(const LibraryProblem& problem) {
  if (off_) return nullptr;
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  if (problem.name == LibraryName::kCublasLt) {
    seek(sought_[0], cublaslt_, context_, folders_);
    return cublaslt_ == nullptr ? nullptr : make_call(cublaslt_, problem);
  }
  seek(sought_[1], cudnn_, context_, folders_);
  return cudnn_ == nullptr ? nullptr : make_call(cudnn_, problem);
}

}  // namespace npusim::cuda
