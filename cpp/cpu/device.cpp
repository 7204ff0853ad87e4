#include "cpp/cpu/device.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "cpp/cpu/command_list.h"
#include "cpp/cpu/host_memory.h"
#include "cpp/cpu/isa.h"
#include "cpp/runtime/cores.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/thread_pool.h"

namespace npusim::cpu {
namespace {

// The processor's name as the system gives it, or an empty string.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(": ") + 2);
  }
  return "";
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuCommandList::Shared shared)
      : shared_(std::make_shared<const CpuCommandList::Shared>(std::move(shared))) {}

  std::string_view name() const noexcept override { return "cpu"; }
  bool shares_host_memory() const noexcept override { return true; }

  std::string kind() const override { return "cpu, " + std::string(shared_->isa.name); }

  std::string description() const override {
    const std::string processor = processor_name();
    const int threads = shared_->pool->workers();
    return (processor.empty() ? "cpu" : processor) + ", " + std::string(shared_->isa.name) + ", " +
           std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  }

  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<HostMemory>(bytes);
  }
  std::shared_ptr<Memory> allocate_growing(int64_t bytes) override {
    return std::make_shared<HostMemory>(bytes, /*huge_pages=*/false);
  }

  void upload(Memory& to, int64_t offset, std::span<const std::byte> from) override {
    check_range(to, offset, static_cast<int64_t>(from.size()));
    if (!from.empty()) std::memcpy(to.data() + offset, from.data(), from.size());
  }

  void download(std::span<std::byte> to, const Memory& from, int64_t offset) override {
    check_range(from, offset, static_cast<int64_t>(to.size()));
    if (!to.empty()) std::memcpy(to.data(), from.data() + offset, to.size());
  }

  void copy(Memory& to, int64_t to_offset, const Memory& from, int64_t from_offset,
            int64_t bytes) override {
    check_range(to, to_offset, bytes);
    check_range(from, from_offset, bytes);
    if (bytes == 0) return;
    std::memmove(to.data() + to_offset, from.data() + from_offset, static_cast<size_t>(bytes));
  }

  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return std::make_unique<CpuCommandList>(std::move(program), method, shared_);
  }

 private:
  std::shared_ptr<const CpuCommandList::Shared> shared_;
};

}  // namespace

std::shared_ptr<Device> open_device(const DeviceOptions& options) {
  const Isa isa = choose_isa(options.isa);
  if (options.threads < 0 || options.threads > ThreadPool::kMaxWorkers) {
    throw Error(ErrorCode::kDevice,
                "threads must lie between 1 and " + std::to_string(ThreadPool::kMaxWorkers) +
                    ", or be 0 for all cores; got " + std::to_string(options.threads));
  }
  if (options.max_work < 0) {
    throw Error(ErrorCode::kDevice, "max_work is a count of steps, or 0 for any; got " +
                                        std::to_string(options.max_work));
  }
  if (options.pin_threads && !can_pin_threads()) {
    throw Error(ErrorCode::kDevice,
                "this system cannot pin threads to cores; leave pin_threads off");
  }
  const std::vector<int> cores = usable_cores();
  const int threads = options.threads == 0 ? static_cast<int>(cores.size()) : options.threads;
  std::vector<int> pinned;
  if (options.pin_threads) pinned = cores;
  return std::make_shared<CpuDevice>(
      CpuCommandList::Shared{.isa = isa,
                             .pool = std::make_shared<ThreadPool>(threads, pinned),
                             .interruption = options.interruption,
                             .max_work = options.max_work});
}

}  // namespace npusim::cpu
