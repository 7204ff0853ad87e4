#include "cpp/cuda/command_list.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"

namespace npusim::cuda {
namespace {

constexpr size_t kMostArguments = 512;       // what 4 KiB of kernel parameters hold
constexpr uintptr_t kOperandAlignment = 16;  // kernels move 16 bytes at a time
constexpr size_t kFewLaunches = 1;           // which a graph would not start sooner

std::string kernel_place(const Program& program, const Kernel& kernel) {
  const auto index = &kernel - program.kernels.data();
  return "kernel " + std::to_string(index) + " (" + std::string(kernel.name) + ")";
}

}  // namespace

CudaCommandList::CudaCommandList(std::shared_ptr<const Context> context,
                                 std::shared_ptr<const Program> program, const Method& method,
                                 Libraries& libraries)
    : context_(std::move(context)), program_(std::move(program)), method_(method) {
  const Current current(*context_);
  check_images();
  load_kernels(libraries);
  lay_out();
  resolve_launches();
  reserve();
  index_uses();
}

// What runs on streams of others is in nobody's way but its own: its memory is freed behind it.
CudaCommandList::~CudaCommandList() {
  if (queue_ == nullptr) return;
  const Current current(*context_);
  context_->driver().ctx_synchronize();
}

void CudaCommandList::check_images() const {
  std::string lacking;
  for (const Command& command : method_.commands) {
    const Kernel& kernel = program_->kernels[command.kernel];
    if (kernel.image.empty() && lacking.find(kernel.name) == lacking.npos) {
      lacking += (lacking.empty() ? "" : ", ") + std::string(kernel.name);
    }
  }
  if (lacking.empty()) return;
  throw Error(ErrorCode::kVersion, "the program was compiled for target " +
                                       std::string(program_->target) +
                                       " and has no CUDA code for: " + lacking +
                                       ". Compile the model with target='cuda'.");
}

// Loads the code the method uses, or finds the library that does its work.
void CudaCommandList::load_kernels(Libraries& libraries) {
  kernels_.resize(program_->kernels.size());
  std::vector<bool> parsed(kernels_.size(), false), for_library(kernels_.size(), true);
  for (const Command& command : method_.commands) {
    Code& code = kernels_[command.kernel];
    const Kernel& kernel = program_->kernels[command.kernel];
    if (!parsed[command.kernel]) {
      code.image = parse_image(kernel.image, kernel_place(*program_, kernel));
      if (!runs_on(code.image.arch, context_->major(), context_->minor())) {
        for (ImageLaunch& launch : code.image.launches) {
          launch.shared = launch.elsewhere.value_or(launch.shared);
        }
      }
      parsed[command.kernel] = true;
    }
    if (!check_problem(command)) for_library[command.kernel] = false;
  }
  for (size_t i = 0; i < kernels_.size(); ++i) {
    Code& code = kernels_[i];
    if (code.image.launches.empty()) continue;  // not of this method, or nothing to compute
    if (for_library[i] && code.image.library) code.library = libraries.call(*code.image.library);
    if (code.library != nullptr) continue;
    code.module = std::make_unique<Module>(context_, code.image, libraries.folders(),
                                           kernel_place(*program_, program_->kernels[i]));
  }
}

// Whether a library can take the command's operands: plans are made for addresses of 16 bytes.
bool CudaCommandList::check_problem(const Command& command) const {
  const auto& problem = kernels_[command.kernel].image.library;
  if (!problem) return false;
  std::vector<int64_t> bytes;
  bool aligned = true;
  for (const Operand& operand : command.operands) {
    bytes.push_back(program_->buffers[operand.buffer].bytes - operand.offset);
    aligned = aligned && operand.offset % static_cast<int64_t>(kOperandAlignment) == 0;
  }
  cuda::check_problem(*problem, bytes, place_of(*program_, method_, command));
  return aligned;
}

// Gives every command its arguments: operands, scratch, failure.
void CudaCommandList::lay_out() {
  size_t launch = 0, argument = 0, map = 0;
  for (const Command& command : method_.commands) {
    const Code& code = kernels_[command.kernel];
    size_t operands = command.operands.size();
    if (!code.library && code.image.operands) {
      operands = std::min(operands, static_cast<size_t>(*code.image.operands));
    }
    Step step{.library = code.library.get(),
              .first_launch = launch,
              .last_launch = launch + (code.library ? 1 : code.image.launches.size()),
              .operands = operands,
              .first_argument = argument,
              .arguments = operands + (code.scratch() > 0 ? 1 : 0) + code.reports(),
              .first_slot = argument + map,
              .first_map = map,
              .failure = code.reports() ? failure_count_++ : kNone};
    if (step.arguments > kMostArguments) {
      throw Error(ErrorCode::kFormat,
                  place_of(*program_, method_, command) + ": it has too many operands");
    }
    check_maps(command, operands);
    launch = step.last_launch;
    argument += step.arguments;
    map += maps_of(code).size();
    steps_.push_back(step);
  }
  arguments_.assign(argument, nullptr);
  maps_.resize(map);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const size_t maps = maps_of(kernels_[method_.commands[i].kernel]).size();
    for (size_t k = 0; k < steps_[i].arguments; ++k) {
      slots_.push_back(&arguments_[steps_[i].first_argument + k]);
    }
    for (size_t k = 0; k < maps; ++k) slots_.push_back(&maps_[steps_[i].first_map + k]);
  }
}

// What a kernel maps must lie inside the operand it is part of.
void CudaCommandList::check_maps(const Command& command, size_t operands) const {
  for (const Matrix& matrix : maps_of(kernels_[command.kernel])) {
    const auto index = static_cast<size_t>(matrix.operand);
    if (index < operands) {
      const Operand& operand = command.operands[index];
      const int64_t bytes = program_->buffers[operand.buffer].bytes - operand.offset;
      const int64_t last = 2 * matrix.columns;  // bytes of a row
      const bool fits = last <= bytes &&
                        (matrix.rows <= 1 || matrix.stride <= (bytes - last) / (matrix.rows - 1));
      if (fits) continue;
    }
    throw Error(ErrorCode::kFormat,
                place_of(*program_, method_, command) + ": its kernel maps what it does not have");
  }
}

// The maps a command's launches take: none where a library runs instead.
std::span<const Matrix> CudaCommandList::maps_of(const Code& code) {
  if (code.library != nullptr) return {};
  return code.image.maps;
}

void CudaCommandList::resolve_launches() {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Code& code = kernels_[method_.commands[i].kernel];
    if (code.library != nullptr) {
      launches_.push_back({});  // refresh_graph() puts the library's work here
      continue;
    }
    for (const ImageLaunch& launch : code.image.launches) {
      const size_t arguments = steps_[i].arguments, maps = maps_of(code).size();
      launches_.push_back({.function = code.module->function(launch, arguments, maps),
                           .grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                           .block = {launch.block[0], launch.block[1], launch.block[2]},
                           .shared = launch.shared,
                           .params = slots_.data() + steps_[i].first_slot,
                           .dependent = code.image.dependent});
    }
  }
  const bool own = std::all_of(steps_.begin(), steps_.end(),
                               [](const Step& step) { return step.library == nullptr; });
  direct_ = own && launches_.size() <= kFewLaunches;
}

// Commands run one after another, so one scratch serves all; each has a failure of its own.
void CudaCommandList::reserve() {
  int64_t most = 0;
  for (const Code& code : kernels_) most = std::max(most, code.scratch());
  if (most > 0) scratch_ = std::make_unique<CudaMemory>(context_, most);
  if (failure_count_ > 0) {
    const size_t bytes = failure_count_ * sizeof(Failure);
    failures_ = std::make_unique<PinnedMemory>(context_, bytes);
    std::memset(failures_->data(), 0, bytes);
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Command& command = method_.commands[i];
    size_t argument = steps_[i].first_argument + steps_[i].operands;
    if (kernels_[command.kernel].scratch() > 0) arguments_[argument++] = scratch_->data();
    if (steps_[i].failure != kNone) {
      arguments_[argument] = failures_->data() + steps_[i].failure * sizeof(Failure);
    }
  }
}

// Lists, for every buffer, the arguments to patch when it moves.
void CudaCommandList::index_uses() {
  const size_t buffers = program_->buffers.size();
  bound_.assign(buffers, nullptr);
  first_use_.assign(buffers + 1, 0);
  const auto operands = [&](size_t step) {
    return method_.commands[step].operands.first(steps_[step].operands);
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    for (const Operand& operand : operands(i)) ++first_use_[operand.buffer + 1];
  }
  for (size_t i = 0; i < buffers; ++i) first_use_[i + 1] += first_use_[i];
  uses_.resize(first_use_.back());
  std::vector<size_t> next(first_use_.begin(), first_use_.end() - 1);
  for (size_t i = 0; i < steps_.size(); ++i) {
    size_t argument = steps_[i].first_argument;
    for (const Operand& operand : operands(i)) {
      uses_[next[operand.buffer]++] = {i, argument++, operand.offset};
    }
  }
  moved_.reserve(steps_.size());
}

void CudaCommandList::bind(uint32_t buffer, std::byte* address) {
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
  const std::span<const Matrix> maps = maps_of(kernels_[method_.commands[index].kernel]);
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
  queue_ = queue == 0 ? context_->stream() : reinterpret_cast<StreamHandle>(queue);
  if (direct_) return launch_all(queue_);
  refresh_graph();
  graph_->launch(queue_);
}

void CudaCommandList::settle() {
  if (queue_ == nullptr) return;
  const Current current(*context_);
  const StreamHandle queue = std::exchange(queue_, nullptr);
  context_->driver().check(context_->driver().stream_synchronize(queue),
                           "finish the work on the device");
  throw_failure();
}

void CudaCommandList::submit_observed(const std::function<void(size_t)>& after) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    {
      const Current current(*context_);
      launch(steps_[i]);
      context_->synchronize();
      throw_failure();
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
  throw_failure();
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
                    step.library->scratch() > 0 ? scratch_->data() : nullptr, stream);
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

// The first failure, in the order of commands, of work that has ended.
void CudaCommandList::throw_failure() {
  for (size_t i = 0; failure_count_ > 0 && i < steps_.size(); ++i) {
    if (steps_[i].failure == kNone) continue;
    Failure failure;
    std::memcpy(&failure, failures_->data() + steps_[i].failure * sizeof failure, sizeof failure);
    if (failure.code == 0) continue;
    std::memset(failures_->data(), 0, failure_count_ * sizeof failure);
    throw Error(ErrorCode::kData,
                place_of(*program_, method_, method_.commands[i]) + ": a value is out of range: " +
                    std::to_string(failure.value) + ", limit " + std::to_string(failure.limit));
  }
}

}  // namespace npusim::cuda
