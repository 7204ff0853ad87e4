// Kernel launches in a row as one CUDA graph, which the driver starts in one call.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpp/cuda/context.h"

namespace npusim::cuda {

// One launch of a function; `params` points to the arguments, wherever they lie.
struct KernelLaunch {
  FunctionHandle function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  void** params;
};

class Graph {
 public:
  // Takes the arguments as they are now; each launch waits for the one before. The context must be
  // current. Throws Error(kDevice).
  Graph(std::shared_ptr<const Context> context, std::span<const KernelLaunch> launches);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Takes the arguments of one launch anew.
  void update(size_t index, const KernelLaunch& launch);
  void launch();

 private:
  std::shared_ptr<const Context> context_;
  GraphHandle graph_ = nullptr;
  GraphExecHandle executable_ = nullptr;
  std::vector<GraphNodeHandle> nodes_;
};

}  // namespace npusim::cuda
