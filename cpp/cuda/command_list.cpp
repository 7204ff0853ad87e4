// What a command list does for its caller: binding, running, and saying what kernels met. How it is
// made stands in command_list_layout.cpp.
#include "cpp/cuda/command_list.h"

#include <utility>

#include "cpp/runtime/error.h"

namespace npusim::cuda {

// What runs on streams of others is in nobody's way but its own: its memory is freed after it.
CudaCommandList::~CudaCommandList() {
  if (queue_ == nullptr) return;
  const Current current(*context_);
  context_->driver().ctx_synchronize();
}

void CudaCommandList::bind(uint32_t buffer, const MemoryRange& at) {
  std::byte* const address = address_of(at);
  if (bound_[buffer] == address) return;
  if (reinterpret_cast<uintptr_t>(address) % kOperandAlignment != 0) {
    throw Error(ErrorCode::kInput, "buffer " + std::to_string(buffer) + " (" +
                                       std::string(program_->buffers[buffer].name) +
                                       ") does not lie at a multiple of 16 bytes; copy it");
  }
  bound_[buffer] = address;
  timer_.reset();
  for (size_t i = first_use_[buffer]; i < first_use_[buffer + 1]; ++i) {
    const Use& use = uses_[i];
    arguments_[use.argument] = address + use.offset;
    describe(steps_[use.step], use.argument);
    if (graph_ == nullptr || steps_[use.step].moved) continue;
    steps_[use.step].moved = true;
    moved_.push_back(use.step);
  }
}

// Encodes the maps of an argument that has moved.
void CudaCommandList::describe(const Step& step, size_t argument) {
  const auto index = static_cast<size_t>(&step - steps_.data());
  const std::span<const Matrix> maps = maps_of(codes_[code_of_[index]]);
  for (size_t i = 0; i < maps.size(); ++i) {
    if (step.first_argument + static_cast<size_t>(maps[i].operand) != argument) continue;
    const Current current(*context_);
    maps_[step.first_map + i] = encode_map(context_->driver(), maps[i], arguments_[argument]);
  }
}

std::string CudaCommandList::implementation(size_t command) const {
  const LibraryCall* library = steps_[command].library;
  return library == nullptr ? "" : library->description();
}

void CudaCommandList::submit() {
  enqueue(0);
  settle();
}

void CudaCommandList::enqueue(uintptr_t queue) {
  if (launches_.empty()) return;
  const Current current(*context_);
  if (!direct_) refresh_graph();
  start(queue == 0 ? context_->stream() : reinterpret_cast<StreamHandle>(queue));
}

void CudaCommandList::start(StreamHandle queue) {
  queue_ = queue;
  if (direct_) return launch_all(queue_);
  graph_->launch(queue_);
}

void CudaCommandList::ready() {
  if (launches_.empty() || direct_) return;
  const Current current(*context_);
  const bool fresh = graph_ == nullptr;
  refresh_graph();
  if (fresh) graph_->upload(context_->stream());
}

void CudaCommandList::go() {
  if (launches_.empty()) return;
  const Current current(*context_);
  start(context_->stream());
}

void CudaCommandList::put(size_t command) {
  const Current current(*context_);
  queue_ = context_->stream();
  launch(steps_[command]);
}

std::optional<CudaCommandList::Exchanging> CudaCommandList::first_exchange() const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const bool launches = steps_[i].first_launch < steps_[i].last_launch;
    if (launches && codes_[code_of_[i]].exchanges()) {
      return Exchanging{i, launches_[steps_[i].first_launch]};
    }
  }
  return std::nullopt;
}

void CudaCommandList::settle() {
  if (queue_ == nullptr) return;
  const Current current(*context_);
  const StreamHandle queue = std::exchange(queue_, nullptr);
  context_->driver().check(context_->driver().stream_synchronize(queue),
                           "finish the work on the device");
  check_failures();
}

void CudaCommandList::submit_observed(const std::function<void(size_t)>& after) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    {
      const Current current(*context_);
      launch(steps_[i]);
      context_->synchronize();
      check_failures();
    }
    after(i);
  }
}

void CudaCommandList::submit_stepwise(const std::function<void(size_t)>& after) {
  const Current current(*context_);
  queue_ = context_->stream();
  for (size_t i = 0; i < steps_.size(); ++i) {
    launch(steps_[i]);
    after(i);
  }
  settle();
}

void CudaCommandList::submit_timed(std::span<double> seconds) {
  const Current current(*context_);
  if (timer_ == nullptr) {
    timer_ = std::make_unique<CommandTimer>(context_, steps_.size(),
                                            [&](size_t index) { launch(steps_[index]); });
  }
  timer_->run(seconds);
  context_->synchronize();
  check_failures();
}

void CudaCommandList::launch(const Step& step) {
  const Driver& driver = context_->driver();
  if (step.library != nullptr) return run_library(step, context_->stream());
  for (size_t i = step.first_launch; i < step.last_launch; ++i) {
    const KernelLaunch& it = launches_[i];
    driver.check(driver.launch_kernel(it.function, it.grid[0], it.grid[1], it.grid[2], it.block[0],
                                      it.block[1], it.block[2], it.shared, context_->stream(),
                                      it.params, nullptr),
                 "start a kernel");
  }
}

// As a graph of them would run: see Graph.
void CudaCommandList::launch_all(StreamHandle stream) const {
  const Driver& driver = context_->driver();
  for (const KernelLaunch& it : launches_) {
    const bool overlaps =
        it.dependent && &it != launches_.data() && context_->overlaps_dependent_launches();
    const LaunchConfig config{.grid = {it.grid[0], it.grid[1], it.grid[2]},
                              .block = {it.block[0], it.block[1], it.block[2]},
                              .shared = it.shared,
                              .stream = stream,
                              .attributes = &kProgrammaticLaunch,
                              .attribute_count = overlaps ? 1U : 0U};
    driver.check(driver.launch_kernel_ex(&config, it.function, it.params, nullptr),
                 "start a kernel");
  }
}

void CudaCommandList::run_library(const Step& step, StreamHandle stream) {
  const std::span<std::byte* const> arguments(arguments_);
  step.library->run(arguments.subspan(step.first_argument, step.operands),
                    step.library->scratch() > 0 ? scratch_->address() : nullptr, stream);
}

CapturedWork CudaCommandList::captured(const Step& step) {
  if (recorder_ == nullptr) recorder_ = std::make_unique<Recorder>(context_);
  return recorder_->record([&](StreamHandle stream) { run_library(step, stream); });
}

void CudaCommandList::make_graph() {
  std::vector<KernelLaunch> launches = launches_;
  std::vector<CapturedWork> works;  // the graph copies them
  for (const Step& step : steps_) {
    if (step.library == nullptr) continue;
    launches[step.first_launch].child = works.emplace_back(captured(step)).graph();
  }
  graph_.reset();
  graph_ = std::make_unique<Graph>(context_, launches);
}

void CudaCommandList::refresh_graph() {
  bool whole = graph_ != nullptr;
  for (const size_t index : moved_) {
    Step& step = steps_[index];
    step.moved = false;
    if (!whole) continue;
    if (step.library != nullptr) {
      const CapturedWork work = captured(step);
      KernelLaunch launch{};
      launch.child = work.graph();
      whole = graph_->update(step.first_launch, launch);
      continue;
    }
    for (size_t i = step.first_launch; i < step.last_launch; ++i) graph_->update(i, launches_[i]);
  }
  moved_.clear();
  if (!whole) make_graph();
}

void CudaCommandList::check_failures() {
  if (failures_ != nullptr) failing_.check(*program_, method_, failures_->data());
}

}  // namespace npusim::cuda
