#include "cpp/cuda/nccl.h"

#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "cpp/cuda/library.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr int kBytes = 0;  // ncclInt8
constexpr int kMajor = 2, kOldest = 21100;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kDevice, why);
}

Library open(std::span<const std::string> folders) {
  platform::set_environment("NCCL_NVLS_ENABLE", "0");
  const std::vector<std::string> names = {
      platform::cuda_library_name(platform::CudaLibrary::kNccl, kMajor)};
  const std::optional<Library> library = find_library(names, folders);
  if (!library) {
    refuse("NCCL was not found (" + names.front() +
           "; pip install nvidia-nccl-cu13, or set NPUSIM_CUDA_PATH to the folder it lies in)");
  }
  return *library;
}

}  // namespace

Nccl::Nccl(Contexts contexts, std::span<const std::string> folders)
    : contexts_(std::move(contexts)) {
  const Library library = open(folders);
  const auto need = [&](const char* symbol, auto& to) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(
        platform::library_symbol(library.handle, symbol));
    if (to == nullptr) refuse(library.path + " is no NCCL: it has no " + symbol);
  };
  need("ncclGetVersion", entries_.get_version);
  need("ncclGetErrorString", entries_.get_error_string);
  need("ncclCommInitAll", entries_.init_all);
  need("ncclCommDestroy", entries_.destroy);
  need("ncclCommAbort", entries_.abort);
  need("ncclCommGetAsyncError", entries_.get_async_error);
  need("ncclGroupStart", entries_.group_start);
  need("ncclGroupEnd", entries_.group_end);
  need("ncclAllGather", entries_.all_gather);
  if (entries_.get_version(&version_) != 0 || version_ < kOldest) {
    refuse(library.path + " is NCCL " + version_text() + ", and npusim uses versions from 2.11 on");
  }
  std::vector<int> ordinals;
  for (const auto& context : contexts_) ordinals.push_back(context->ordinal());
  std::vector<NcclEntries::Communicator> made(contexts_.size());
  const Current current(*contexts_.front());  // NCCL makes others current
  check(entries_.init_all(made.data(), static_cast<int>(made.size()), ordinals.data()),
        "start for these devices");
  communicators_ = std::move(made);
}

Nccl::~Nccl() {
  const Current current(*contexts_.front());
  for (const auto communicator : communicators_) entries_.destroy(communicator);
}

// 2.28.3 is 22803.
std::string Nccl::version_text() const {
  return std::to_string(version_ / 10000) + "." + std::to_string(version_ % 10000 / 100) + "." +
         std::to_string(version_ % 100);
}

void Nccl::check(NcclEntries::Status status, const std::string& what) {
  if (status == 0) return;
  const std::string why = entries_.get_error_string(status);
  give_up();
  refuse("NCCL " + version_text() + " could not " + what + ": " + why);
}

void Nccl::give_up() noexcept {
  const Current current(*contexts_.front());
  for (const auto communicator : communicators_) entries_.abort(communicator);
  communicators_.clear();
}

void Nccl::all_gather(std::span<std::byte* const> at, size_t bytes) {
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  if (communicators_.empty()) {
    refuse("NCCL has been given up after a failure: load the program again");
  }
  const std::string what = "gather values";
  const Current current(*contexts_.front());
  check(entries_.group_start(), what);
  NcclEntries::Status first = 0;
  for (size_t rank = 0; rank < contexts_.size(); ++rank) {
    const auto status = entries_.all_gather(at[rank] + rank * bytes, at[rank], bytes, kBytes,
                                            communicators_[rank], contexts_[rank]->stream());
    if (first == 0) first = status;
  }
  const auto ended = entries_.group_end();  // whatever was put in
  check(first == 0 ? ended : first, what);
}

// Whether a rank's stream still runs, and none has failed.
bool Nccl::pending() {
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  bool runs = false;
  for (size_t rank = 0; rank < contexts_.size(); ++rank) {
    const Context& context = *contexts_[rank];
    const Current current(context);
    const Result result = context.driver().stream_query(context.stream());
    NcclEntries::Status failure = 0;
    if (!communicators_.empty()) entries_.get_async_error(communicators_[rank], &failure);
    if ((result != kSuccess && result != kNotReady) || failure != 0) {
      give_up();
      return false;
    }
    runs = runs || result == kNotReady;
  }
  return runs;
}

void Nccl::await() {
  while (pending()) std::this_thread::yield();
}

}  // namespace npusim::cuda
