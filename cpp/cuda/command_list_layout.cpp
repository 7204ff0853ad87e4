// How a command list is made: code loaded, arguments laid out, memory reserved.
#include <algorithm>
#include <cstring>
#include <map>

#include "cpp/cuda/command_list.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"
#include "cpp/runtime/rank_commands.h"

namespace npusim::cuda {
namespace {

constexpr size_t kMostArguments = 512;  // what 4 KiB of kernel parameters hold
constexpr size_t kFewLaunches = 1;      // which a graph would not start sooner

std::string kernel_place(const Program& program, const Kernel& kernel) {
  const auto index = &kernel - program.kernels.data();
  return "kernel " + std::to_string(index) + " (" + std::string(kernel.name) + ")";
}

}  // namespace

CudaCommandList::CudaCommandList(std::shared_ptr<const Context> context,
                                 std::shared_ptr<const Program> program, const Method& method,
                                 KernelStore& store, ModuleStore& modules, Libraries& libraries,
                                 Seat seat)
    : context_(std::move(context)),
      program_(std::move(program)),
      method_(method),
      seat_(std::move(seat)) {
  const std::vector<KernelCode> codes = store.codes(program_, method_);
  const Current current(*context_);
  parse_images(codes);
  load_kernels(codes, modules, libraries);
  lay_out();
  resolve_launches();
  reserve();
  index_uses();
}

// Parses the image of each command, once for all that have it.
void CudaCommandList::parse_images(const std::vector<KernelCode>& codes) {
  std::map<const std::byte*, size_t> known;
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto [entry, fresh] = known.try_emplace(codes[i].image.data(), codes_.size());
    code_of_.push_back(entry->second);
    if (!fresh) continue;
    const Kernel& kernel = program_->kernels[method_.commands[i].kernel];
    Code& code = codes_.emplace_back();
    code.image = parse_image(codes[i].image, kernel_place(*program_, kernel));
    code.owner = codes[i].owner;
    if (runs_on(code.image.arch, context_->major(), context_->minor())) continue;
    for (CudaLaunch& launch : code.image.launches) {
      launch.shared = launch.elsewhere.value_or(launch.shared);
    }
  }
}

const CudaCommandList::Code& CudaCommandList::code_of(const Command& command) const {
  return codes_[code_of_[static_cast<size_t>(&command - method_.commands.data())]];
}

// Loads the code the method uses, or finds the library that does its work.
void CudaCommandList::load_kernels(const std::vector<KernelCode>& codes, ModuleStore& modules,
                                   Libraries& libraries) {
  std::vector<bool> for_library(codes_.size(), true);
  for (size_t i = 0; i < codes.size(); ++i) {
    if (!check_problem(method_.commands[i])) for_library[code_of_[i]] = false;
  }
  for (size_t i = 0; i < codes.size(); ++i) {
    Code& code = codes_[code_of_[i]];
    if (code.image.launches.empty() || code.module || code.library) continue;
    if (for_library[code_of_[i]] && code.image.library) {
      code.library = libraries.call(*code.image.library);
    }
    if (code.library != nullptr) continue;
    const Kernel& kernel = program_->kernels[method_.commands[i].kernel];
    code.module = modules.module(context_, codes[i], code.image, libraries.folders(),
                                 kernel_place(*program_, kernel));
  }
}

// Whether a library can take the command's operands: plans are made for addresses of 16 bytes.
bool CudaCommandList::check_problem(const Command& command) const {
  const auto& problem = code_of(command).image.library;
  if (!problem) return false;
  std::vector<int64_t> bytes;
  bool aligned = true;
  for (const Operand& operand : command.operands) {
    bytes.push_back(program_->buffers[operand.buffer].bytes - operand.offset);
    aligned = aligned && operand.offset % static_cast<int64_t>(kOperandAlignment) == 0;
  }
  npusim::check_problem(*problem, bytes, place_of(*program_, method_, command));
  return aligned;
}

// Gives every command its arguments: operands, scratch, failure.
void CudaCommandList::lay_out() {
  size_t launch = 0, argument = 0, map = 0;
  for (const Command& command : method_.commands) {
    const Code& code = code_of(command);
    size_t operands = command.operands.size();
    if (!code.library && code.image.operands) {
      operands = std::min(operands, static_cast<size_t>(*code.image.operands));
    }
    Step step{
        .library = code.library.get(),
        .first_launch = launch,
        .last_launch = launch + (code.library ? 1 : code.image.launches.size()),
        .operands = operands,
        .first_argument = argument,
        .arguments = operands + (code.scratch() > 0 ? 1 : 0) + code.reports() + code.exchanges(),
        .first_slot = argument + map,
        .first_map = map,
        .failure = code.reports() ? failing_.add(steps_.size()) : kNone};
    if (step.arguments > kMostArguments) {
      throw Error(ErrorCode::kFormat,
                  place_of(*program_, method_, command) + ": it has too many operands");
    }
    check_maps(command, operands);
    check_exchange(command);
    launch = step.last_launch;
    argument += step.arguments;
    map += maps_of(code).size();
    steps_.push_back(step);
  }
  arguments_.assign(argument, nullptr);
  maps_.resize(map);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const size_t maps = maps_of(codes_[code_of_[i]]).size();
    for (size_t k = 0; k < steps_[i].arguments; ++k) {
      slots_.push_back(&arguments_[steps_[i].first_argument + k]);
    }
    for (size_t k = 0; k < maps; ++k) slots_.push_back(&maps_[steps_[i].first_map + k]);
  }
}

// An exchange is of as many ranks as there are, and inside its operands: its code has no say.
void CudaCommandList::check_exchange(const Command& command) const {
  const std::string_view kernel = program_->kernels[command.kernel].name;
  const bool gathers = kernel == kAllGather, reduces = kernel == kAllReduce;
  if (!gathers && !reduces && !code_of(command).exchanges()) return;
  if (seat_.exchange == nullptr || (!gathers && !reduces)) {
    throw Error(ErrorCode::kFormat, place_of(*program_, method_, command) +
                                        ": only programs of several ranks exchange values, by " +
                                        std::string(kAllGather) + " and " +
                                        std::string(kAllReduce));
  }
  const size_t ranks = seat_.exchange->ranks();
  if (gathers) {
    all_gather_of(*program_, method_, command, ranks);
  } else {
    all_reduce_of(*program_, method_, command, ranks);
  }
}

// What a kernel maps must lie inside the operand it is part of, or inside scratch memory.
void CudaCommandList::check_maps(const Command& command, size_t operands) const {
  const int64_t scratch = code_of(command).scratch();
  for (const Matrix& matrix : maps_of(code_of(command))) {
    const auto index = static_cast<size_t>(matrix.operand);
    const bool maps_scratch = index == operands && scratch > 0;
    if (index < operands || maps_scratch) {
      const Operand* operand = maps_scratch ? nullptr : &command.operands[index];
      const int64_t bytes =
          maps_scratch ? scratch : program_->buffers[operand->buffer].bytes - operand->offset;
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
    const Code& code = codes_[code_of_[i]];
    if (code.library != nullptr) {
      launches_.push_back({});  // refresh_graph() puts the library's work here
      continue;
    }
    for (const CudaLaunch& launch : code.image.launches) {
      const size_t arguments = steps_[i].arguments, maps = maps_of(code).size();
      launches_.push_back({.function = code.module->function(launch, arguments, maps),
                           .grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                           .block = {launch.block[0], launch.block[1], launch.block[2]},
                           .shared = launch.shared,
                           .params = slots_.data() + steps_[i].first_slot,
                           .alone = code.exchanges() && seat_.exchange->shares(),
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
  for (const Code& code : codes_) most = std::max(most, code.scratch());
  if (most > 0) scratch_ = std::make_unique<CudaMemory>(context_, most);
  if (!failing_.empty()) {
    failures_ = std::make_unique<PinnedMemory>(context_, failing_.bytes());
    std::memset(failures_->data(), 0, failing_.bytes());
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    size_t argument = steps_[i].first_argument + steps_[i].operands;
    if (codes_[code_of_[i]].scratch() > 0) {
      arguments_[argument] = scratch_->address();
      describe(steps_[i], argument++);
    }
    if (steps_[i].failure != kNone) {
      arguments_[argument++] = failures_->data() + KernelFailures::offset(steps_[i].failure);
    }
    if (codes_[code_of_[i]].exchanges())
      arguments_[argument] = seat_.links->at[seat_.rank]->address();
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

}  // namespace npusim::cuda
