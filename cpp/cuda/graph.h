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
  bool alone = false;           // what comes next starts when it has ended
  bool dependent = false;       // may start before the one in front has ended: it waits by itself
  GraphHandle child = nullptr;  // where set, this work runs instead, and the rest says nothing
};

class Graph {
 public:
  // Takes the arguments as they are now; each launch waits for the one before, or sees to that
  // itself where it is dependent and the device can do it. The context must be current. Throws
  // Error(kDevice).
  Graph(std::shared_ptr<const Context> context, std::span<const KernelLaunch> launches);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Takes the arguments of one launch, or its child's work, anew. False: that work is of another
  // shape than before, and the graph has to be made anew.
  bool update(size_t index, const KernelLaunch& launch);
  void launch(StreamHandle stream);
  // Has the device ready for a launch, so that it takes nothing that other work may hold.
  void upload(StreamHandle stream);

 private:
  Result add(const KernelLaunch& launch);

  std::shared_ptr<const Context> context_;
  GraphHandle graph_ = nullptr;
  GraphExecHandle executable_ = nullptr;
  std::vector<GraphNodeHandle> nodes_;
  bool after_alone_ = false;  // the latest node is not one launch that others can overlap
};

}  // namespace npusim::cuda
