#include "cpp/cuda/captured_work.h"

#include <utility>

namespace npusim::cuda {

CapturedWork::~CapturedWork() {
  if (graph_ != nullptr) context_->driver().graph_destroy(graph_);
}

CapturedWork::CapturedWork(CapturedWork&& other) noexcept
    : context_(other.context_), graph_(std::exchange(other.graph_, nullptr)) {}

Recorder::Recorder(std::shared_ptr<const Context> context) : context_(std::move(context)) {
  const Driver& driver = context_->driver();
  driver.check(driver.stream_create(&stream_, kStreamNonBlocking), "make a stream");
}

Recorder::~Recorder() {
  const Current current(*context_);
  context_->driver().stream_destroy(stream_);
}

CapturedWork Recorder::record(const std::function<void(StreamHandle)>& put) {
  constexpr const char* kWhat = "note down the work of a library";
  const Driver& driver = context_->driver();
  driver.check(driver.stream_begin_capture(stream_, kCaptureRelaxed), kWhat);
  GraphHandle graph = nullptr;
  try {
    put(stream_);
  } catch (...) {
    driver.stream_end_capture(stream_, &graph);
    if (graph != nullptr) driver.graph_destroy(graph);
    throw;
  }
  driver.check(driver.stream_end_capture(stream_, &graph), kWhat);
  return {context_, graph};
}

}  // namespace npusim::cuda
