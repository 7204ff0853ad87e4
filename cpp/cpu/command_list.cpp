#include "cpp/cpu/command_list.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpp/cpu/check.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"

namespace npusim::cpu {
namespace {

constexpr int64_t kUnitsPerWorker = 8;  // enough to even out workers that are slowed down
constexpr size_t kParamsAlignment = 8;
constexpr int64_t kAskedWork = int64_t{1} << 28;  // between questions: milliseconds to seconds
// Nobody can stop a task. More than that, of memory that can be, is no tensor but a hostile stride.
constexpr int64_t kMostTaskWork = int64_t{1} << 35;

// Where operands and scratch of no bytes lie: kernels may calculate with an address that they never
// use, and not with null.
alignas(64) std::byte nowhere[64];

const KernelEntry* find_kernel(const Isa& isa, std::string_view name) {
  for (const KernelEntry* entry : isa.kernels()) {
    if (entry->name == name) return entry;
  }
  return nullptr;
}

}  // namespace

// Tells the submission which command a kernel's complaint is about.
class CpuCommandList::Reporter final : public Failure {
 public:
  Reporter(Fault& fault, size_t launch) : fault_(fault), launch_(launch) {}
  void report(const char* what, int64_t value, int64_t limit) noexcept override {
    if (fault_.seen.exchange(true)) return;
    fault_.launch = launch_;
    fault_.what = what;
    fault_.value = value;
    fault_.limit = limit;
  }

 private:
  Fault& fault_;
  size_t launch_;
};

CpuCommandList::CpuCommandList(std::shared_ptr<const Program> program, const Method& method,
                               std::shared_ptr<const Shared> shared)
    : program_(std::move(program)),
      method_(method),
      shared_(std::move(shared)),
      pool_(*shared_->pool) {
  const std::vector<const KernelEntry*> kernels = resolve_kernels();
  launches_.reserve(method.commands.size());
  for (const Command& command : method.commands) encode(command, *kernels[command.kernel]);
  bound_work();
  index_uses();
  reserve_scratch();
  group_steps();
}

// Finds the kernels the method uses, by Program::kernels index.
std::vector<const KernelEntry*> CpuCommandList::resolve_kernels() const {
  std::vector<const KernelEntry*> found(program_->kernels.size(), nullptr);
  std::vector<bool> tried(found.size(), false);
  std::string problems;
  for (const Command& command : method_.commands) {
    if (tried[command.kernel]) continue;
    tried[command.kernel] = true;
    const Kernel& wanted = program_->kernels[command.kernel];
    const KernelEntry* entry = find_kernel(shared_->isa, wanted.name);
    found[command.kernel] = entry;
    if (entry != nullptr && entry->schema == wanted.schema) continue;
    if (!problems.empty()) problems += ", ";
    problems += std::string(wanted.name) + (entry ? " (with other parameters)" : "");
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::kVersion,
                "the program calls kernels this runtime does not have: " + problems +
                    ". Compile the model again with the npusim that runs it.");
  }
  return found;
}

void CpuCommandList::encode(const Command& command, const KernelEntry& kernel) {
  const size_t padded = (kernel.params_size + kParamsAlignment - 1) / kParamsAlignment * 8;
  if (command.params.size() != kernel.params_size && command.params.size() != padded) {
    refuse_command(*program_, method_, command,
                   "its parameters take " + std::to_string(kernel.params_size) + " bytes, not " +
                       std::to_string(command.params.size()));
  }
  const void* params = aligned_params(command);
  const int64_t work = check_command(*program_, method_, command, command.operands, kernel, params);
  Launch launch{.kernel = &kernel,
                .params = params,
                .first_operand = operands_.size(),
                .tasks = kernel.tasks(params, pool_.workers()),
                .chunk = 0,
                .units = 1,
                .asks = false,
                .work = work};
  if (work / std::max<int64_t>(launch.tasks, 1) > kMostTaskWork) {
    refuse_command(*program_, method_, command,
                   "one of its tasks takes more than " + std::to_string(kMostTaskWork) + " steps");
  }
  split(launch);
  launches_.push_back(launch);
  operands_.resize(operands_.size() + command.operands.size(), nullptr);
}

// Units are shares of the workers; of much work, small enough to ask between them.
void CpuCommandList::split(Launch& launch) const {
  const int64_t workers = pool_.workers();
  launch.chunk = std::max<int64_t>(launch.tasks, 1);
  if (launch.tasks <= 1) return;
  const int64_t shares = workers > 1 ? workers * kUnitsPerWorker : 1;
  const int64_t most = std::min<int64_t>(launch.work / kAskedWork, ThreadPool::kMaxUnits / 2);
  launch.chunk = std::max<int64_t>(1, launch.tasks / std::max(shares, most));
  launch.units = static_cast<uint16_t>((launch.tasks + launch.chunk - 1) / launch.chunk);
}

// Refuses a method that asks for too much; spreads over the others where to ask whether to go on.
void CpuCommandList::bound_work() {
  int64_t total = 0, unasked = 0;
  size_t greatest = 0;
  for (size_t i = 0; i < launches_.size(); ++i) {
    const int64_t work = launches_[i].work;
    if (__builtin_add_overflow(total, work, &total)) total = INT64_MAX;
    if (work > launches_[greatest].work) greatest = i;
    if (__builtin_add_overflow(unasked, work, &unasked)) unasked = INT64_MAX;
    launches_[i].asks = shared_->interruption && unasked >= kAskedWork;
    if (launches_[i].asks) unasked = 0;
  }
  if (shared_->max_work == 0 || total <= shared_->max_work) return;
  throw Error(ErrorCode::kLimit, "the method takes " + std::to_string(total) +
                                     " steps, and max_work is " +
                                     std::to_string(shared_->max_work) + "; most of them, " +
                                     std::to_string(launches_[greatest].work) + ", in " +
                                     place_of(*program_, method_, method_.commands[greatest]));
}

const void* CpuCommandList::aligned_params(const Command& command) {
  const std::byte* params = command.params.data();
  if (reinterpret_cast<uintptr_t>(params) % kParamsAlignment == 0) return params;
  std::vector<uint64_t>& copy = copied_params_.emplace_back((command.params.size() + 7) / 8);
  std::copy_n(params, command.params.size(), reinterpret_cast<std::byte*>(copy.data()));
  return copy.data();
}

// Lists, for every buffer, the operands to patch when it moves.
void CpuCommandList::index_uses() {
  const size_t buffers = program_->buffers.size();
  bound_.assign(buffers, nullptr);
  first_use_.assign(buffers + 1, 0);
  for (const Command& command : method_.commands) {
    for (const Operand& operand : command.operands) ++first_use_[operand.buffer + 1];
  }
  for (size_t i = 0; i < buffers; ++i) first_use_[i + 1] += first_use_[i];
  uses_.resize(operands_.size());
  std::vector<size_t> next(first_use_.begin(), first_use_.end() - 1);
  size_t index = 0;
  for (const Command& command : method_.commands) {
    for (const Operand& operand : command.operands) {
      uses_[next[operand.buffer]++] = {index++, operand.offset};
    }
  }
}

// Of all workers together. What kernels work in counts against the device's limit, too.
int64_t CpuCommandList::scratch_bytes() const {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(scratch_stride_, pool_.workers(), &bytes)) bytes = INT64_MAX;
  const int64_t limit = shared_->max_memory;
  if (limit == 0) return bytes;
  const int64_t declared = declared_memory(*program_).total();
  if (declared <= limit && bytes <= limit - declared) return bytes;
  throw Error(ErrorCode::kLimit, "the method's kernels work in " + std::to_string(bytes) +
                                     " bytes beside the " + std::to_string(declared) +
                                     " that the program declares, and max_memory is " +
                                     std::to_string(limit));
}

void CpuCommandList::reserve_scratch() {
  int64_t most = 0;
  for (const Launch& launch : launches_) {
    most = std::max(most, launch.kernel->scratch(launch.params));
  }
  scratch_stride_ = (most + 63) / 64 * 64;
  const int64_t bytes = scratch_bytes();
  if (most > 0) scratch_ = std::make_unique<HostMemory>(bytes);
  latest_.resize(static_cast<size_t>(pool_.workers()));
}

void CpuCommandList::group_steps() {
  std::vector<uint16_t> units;
  for (size_t i = 0; i < launches_.size(); ++i) {
    const bool joins = launches_[i].units == 1 && !units.empty() && units.back() == 1;
    if (joins) {
      steps_.back().end = i + 1;
    } else {
      steps_.push_back({i, i + 1});
      units.push_back(launches_[i].units);
    }
  }
  const auto run = [](void* self, size_t step, ThreadPool::Units units, int worker) {
    auto& list = *static_cast<CpuCommandList*>(self);
    for (size_t i = list.steps_[step].begin; i < list.steps_[step].end; ++i) {
      list.run_units(i, units, worker);
    }
  };
  job_ = std::make_unique<ThreadPool::Job>(pool_, std::move(units), run, this);
}

void CpuCommandList::bind(uint32_t buffer, const MemoryRange& at) {
  std::byte* address = address_of(at);
  if (bound_[buffer] == address) return;
  bound_[buffer] = address;
  if (address == nullptr) address = nowhere;
  for (size_t i = first_use_[buffer]; i < first_use_[buffer + 1]; ++i) {
    operands_[uses_[i].operand] = address + uses_[i].offset;
  }
}

// Units in one go, or one by one where somebody is asked between them.
void CpuCommandList::run_units(size_t index, ThreadPool::Units units, int worker) noexcept {
  const Launch& launch = launches_[index];
  const int step = launch.asks ? 1 : units.end - units.begin;
  for (int unit = units.begin; unit < units.end; unit += step) {
    if (fault_.seen.load(std::memory_order_relaxed)) return;
    const int64_t end = std::min((unit + step) * launch.chunk, launch.tasks);
    run_tasks(index, unit * launch.chunk, end, worker);
    if (launch.asks && worker == 0) ask();
  }
}

void CpuCommandList::run_tasks(size_t index, int64_t begin, int64_t end, int worker) noexcept {
  const Launch& launch = launches_[index];
  if (launch.tasks == 0) return;
  Reporter reporter(fault_, index);
  std::byte* scratch = scratch_ ? scratch_->host() + worker * scratch_stride_ : nowhere;
  const uint64_t run = submissions_ * launches_.size() + index;
  const uint64_t before = std::exchange(latest_[static_cast<size_t>(worker)].run, run);
  launch.kernel->run({.params = launch.params,
                      .operands = operands_.data() + launch.first_operand,
                      .begin = begin,
                      .end = end,
                      .scratch = scratch,
                      .failure = &reporter,
                      .first = before != run});
}

// On the thread that called submit. What is thrown there waits until all workers have stopped.
void CpuCommandList::ask() noexcept {
  try {
    shared_->interruption();
  } catch (...) {
    interrupted_ = std::current_exception();
    fault_.seen.store(true);
  }
}

void CpuCommandList::submit() {
  ++submissions_;
  pool_.run(*job_);
  if (fault_.seen.load()) throw_fault();
}

void CpuCommandList::submit_observed(const std::function<void(size_t)>& after) {
  struct Single {
    CpuCommandList* list;
    size_t launch;
  };
  const auto run = [](void* context, size_t, ThreadPool::Units units, int worker) {
    const auto& single = *static_cast<const Single*>(context);
    single.list->run_units(single.launch, units, worker);
  };
  ++submissions_;
  for (size_t i = 0; i < launches_.size(); ++i) {
    Single single{this, i};
    ThreadPool::Job job(pool_, {launches_[i].units}, run, &single);
    pool_.run(job);
    if (fault_.seen.load()) throw_fault();
    after(i);
  }
}

void CpuCommandList::throw_fault() {
  fault_.seen.store(false);
  if (interrupted_) std::rethrow_exception(std::exchange(interrupted_, nullptr));
  const Command& command = method_.commands[fault_.launch];
  throw Error(ErrorCode::kData, place_of(*program_, method_, command) + ": " + fault_.what + ": " +
                                    std::to_string(fault_.value) + ", limit " +
                                    std::to_string(fault_.limit));
}

}  // namespace npusim::cpu
