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
    if (result == kSuccess) result = add(launch);
  }
  if (result == kSuccess) result = driver.graph_instantiate(&executable_, graph_, 0);
  if (result == kSuccess) return;
  if (graph_ != nullptr) driver.graph_destroy(graph_);
  driver.check(result, "make a graph of the method's kernels");
}

Result Graph::add(const KernelLaunch& launch) {
  const Driver& driver = context_->driver();
  const KernelNodeParams params = node_params(launch);
  const bool is_child = launch.child != nullptr;
  const bool overlaps = launch.dependent && !is_child && !after_alone_ && !nodes_.empty() &&
                        context_->overlaps_dependent_launches();
  const GraphNodeHandle before = nodes_.empty() ? nullptr : nodes_.back();
  const size_t waits = nodes_.empty() || overlaps ? 0 : 1;
  GraphNodeHandle node = nullptr;
  const GraphNodeHandle* after = waits == 0 ? nullptr : &before;
  const Result added = is_child
                           ? driver.graph_add_child(&node, graph_, after, waits, launch.child)
                           : driver.graph_add_kernel_node(&node, graph_, after, waits, &params);
  nodes_.push_back(node);
  after_alone_ = is_child || launch.alone;
  if (added != kSuccess || !overlaps) return added;
  return driver.graph_add_dependencies(graph_, &before, &node, &kProgrammaticEdge, 1);
}

Graph::~Graph() {
  const Current current(*context_);
  context_->driver().graph_exec_destroy(executable_);
  context_->driver().graph_destroy(graph_);
}

bool Graph::update(size_t index, const KernelLaunch& launch) {
  const Driver& driver = context_->driver();
  if (launch.child != nullptr) {
    return driver.graph_exec_set_child(executable_, nodes_[index], launch.child) == kSuccess;
  }
  const KernelNodeParams params = node_params(launch);
  driver.check(driver.graph_exec_set_params(executable_, nodes_[index], &params),
               "give a kernel of the graph its arguments");
  return true;
}

void Graph::upload(StreamHandle stream) {
  const Driver& driver = context_->driver();
  driver.check(driver.graph_upload(executable_, stream), "bring the method's graph to the device");
}

void Graph::launch(StreamHandle stream) {
  const Driver& driver = context_->driver();
  driver.check(driver.graph_launch(executable_, stream), "start the method's graph");
}

}  // namespace npusim::cuda
