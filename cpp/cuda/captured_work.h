// What is put on a stream while it is captured, as a graph to be part of another one.
#pragma once

#include <functional>
#include <memory>

#include "cpp/cuda/context.h"

namespace npusim::cuda {

// Captured work; frees its graph.
class CapturedWork {
 public:
  CapturedWork(std::shared_ptr<const Context> context, GraphHandle graph)
      : context_(std::move(context)), graph_(graph) {}
  ~CapturedWork();
  CapturedWork(CapturedWork&& other) noexcept;
  CapturedWork& operator=(CapturedWork&&) = delete;

  GraphHandle graph() const noexcept { return graph_; }

 private:
  std::shared_ptr<const Context> context_;
  GraphHandle graph_;
};

// A stream that nothing runs on, so that what others start meanwhile is not captured too.
class Recorder {
 public:
  // The context must be current. Throws Error(kDevice).
  explicit Recorder(std::shared_ptr<const Context> context);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Calls `put`, which puts work on the stream it is given; none of it runs. The context must be
  // current. Throws Error(kDevice), and what `put` throws.
  CapturedWork record(const std::function<void(StreamHandle)>& put);

 private:
  std::shared_ptr<const Context> context_;
  StreamHandle stream_ = nullptr;
};

}  // namespace npusim::cuda
