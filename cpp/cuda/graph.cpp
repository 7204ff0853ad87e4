#include "cpp/cuda/graph.h"

#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

KernelNodeParams node_params(const KernelLaunch& launch) {
  return {.function = launch.function,
          .grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
          .block = {launch.block[0], launch.block[1], launch.block[2]},
          .shared = launch.shared,
          .params = launch.params,
          .extra = nullptr,
          .kernel = nullptr,
          .context = nullptr};
}

}  // namespace

Graph::Graph(std::shared_ptr<const Context> context, std::span<const KernelLaunch> launches)
    : context_(std::move(context)) {
  const Driver& driver = context_->driver();
  Result result = driver.graph_create(&graph_, 0);
  for (const KernelLaunch& launch : launches) {
    if (result != kSuccess) break;
    const KernelNodeParams params = node_params(launch);
    const GraphNodeHandle* before = nodes_.empty() ? nullptr : &nodes_.back();
    GraphNodeHandle node = nullptr;
    result =
        driver.graph_add_kernel_node(&node, graph_, before, before == nullptr ? 0 : 1, &params);
    nodes_.push_back(node);
  }
  if (result == kSuccess) result = driver.graph_instantiate(&executable_, graph_, 0);
  if (result == kSuccess) return;
  if (graph_ != nullptr) driver.graph_destroy(graph_);
  driver.check(result, "make a graph of the method's kernels");
}

Graph::~Graph() {
  const Current current(*context_);
  context_->driver().graph_exec_destroy(executable_);
  context_->driver().graph_destroy(graph_);
}

void Graph::update(size_t index, const KernelLaunch& launch) {
  const Driver& driver = context_->driver();
  const KernelNodeParams params = node_params(launch);
  driver.check(driver.graph_exec_set_params(executable_, nodes_[index], &params),
               "give a kernel of the graph its arguments");
}

void Graph::launch() {
  const Driver& driver = context_->driver();
  driver.check(driver.graph_launch(executable_, context_->stream()), "start the method's graph");
}

}  // namespace npusim::cuda
