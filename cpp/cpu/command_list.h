// A method made ready for the CPU: kernels resolved, parameters checked, tasks counted, operand
// pointers laid out in one array that bind() patches. After encoding, nothing is allocated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "cpp/cpu/host_memory.h"
#include "cpp/cpu/isa.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"
#include "cpp/runtime/thread_pool.h"

namespace npusim::cpu {

class CpuCommandList final : public CommandList {
 public:
  // What a device's lists have in common.
  struct Shared {
    Isa isa;
    std::shared_ptr<ThreadPool> pool;
    Interruption interruption;  // may be empty
    int64_t max_work;           // 0: any
    int64_t max_memory;         // likewise
  };

  // Throws as Device::encode does. `shared` outlives the list.
  CpuCommandList(std::shared_ptr<const Program> program, const Method& method,
                 std::shared_ptr<const Shared> shared);

  void bind(uint32_t buffer, const MemoryRange& at) override;
  void submit() override;
  void submit_observed(const std::function<void(size_t)>& after) override;

 private:
  // A command with all that a call of its kernel needs.
  struct Launch {
    const KernelEntry* kernel;
    const void* params;
    size_t first_operand;  // in operands_
    int64_t tasks;         // of the kernel
    int64_t chunk;         // tasks a unit
    uint16_t units;
    bool asks;  // after each unit, whether to go on
    int64_t work;
  };
  // Launches [begin, end) walked as one step: a parallel one, or serial ones in a row.
  struct Step {
    size_t begin, end;
  };
  // Where a buffer is an operand.
  struct Use {
    size_t operand;  // in operands_
    int64_t offset;
  };
  // The first value a kernel could not serve in this submission.
  struct Fault {
    std::atomic<bool> seen{false};
    size_t launch = 0;
    const char* what = nullptr;
    int64_t value = 0, limit = 0;
  };
  // The run of a launch that a worker's scratch is from. A cache line of its own.
  struct alignas(64) Latest {
    uint64_t run = 0;
  };
  class Reporter;

  std::vector<const KernelEntry*> resolve_kernels() const;
  void encode(const Command& command, const KernelEntry& kernel);
  const void* aligned_params(const Command& command);
  void index_uses();
  int64_t scratch_bytes() const;
  void reserve_scratch();
  void bound_work();
  void split(Launch& launch) const;
  void group_steps();
  void run_units(size_t launch, ThreadPool::Units units, int worker) noexcept;
  void run_tasks(size_t launch, int64_t begin, int64_t end, int worker) noexcept;
  void ask() noexcept;
  void throw_fault();

  std::shared_ptr<const Program> program_;
  const Method& method_;
  std::shared_ptr<const Shared> shared_;
  ThreadPool& pool_;
  std::vector<Launch> launches_;
  std::vector<void*> operands_;
  std::vector<std::vector<uint64_t>> copied_params_;  // of commands the file holds unaligned
  std::vector<size_t> first_use_;                     // in uses_, by buffer; one entry more
  std::vector<Use> uses_;
  std::vector<std::byte*> bound_;  // by buffer
  std::unique_ptr<HostMemory> scratch_;
  int64_t scratch_stride_ = 0;  // bytes a worker
  std::vector<Latest> latest_;  // by worker
  uint64_t submissions_ = 0;
  Fault fault_;
  std::exception_ptr interrupted_;  // what the interruption threw in this submission
  std::vector<Step> steps_;
  std::unique_ptr<ThreadPool::Job> job_;  // last: its destructor waits for the workers
};

}  // namespace npusim::cpu
