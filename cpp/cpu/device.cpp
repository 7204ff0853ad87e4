#include "cpp/cpu/device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cpp/cpu/command_list.h"
#include "cpp/cpu/host_memory.h"
#include "cpp/cpu/isa.h"
#include "cpp/cpu/rates.h"
#include "cpp/platform/cores.h"
#include "cpp/platform/processor.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/ranks.h"
#include "cpp/runtime/thread_pool.h"

namespace npusim::cpu {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(CpuCommandList::Shared shared)
      : shared_(std::make_shared<const CpuCommandList::Shared>(std::move(shared))) {}

  std::string_view name() const noexcept override { return "cpu"; }
  Addressing addressing() const noexcept override { return Addressing::kHost; }
  bool host_visible() const noexcept override { return true; }
  bool synchronous() const noexcept override { return true; }
  size_t alignment() const noexcept override { return sizeof(double); }
  std::optional<ForeignNames> foreign_names() const override { return ForeignNames{1, 0, "cpu"}; }

  std::string kind() const override { return "cpu, " + std::string(shared_->isa.name); }

  std::string description() const override {
    const std::string processor = platform::processor_name();
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

  void upload(const MemoryRange& to, std::span<const std::byte> from) override {
    std::memcpy(address_of(to), from.data(), from.size());
  }
  void download(std::span<std::byte> to, const MemoryRange& from) override {
    std::memcpy(to.data(), address_of(from), to.size());
  }
  void copy(const MemoryRange& to, const MemoryRange& from) override {
    std::memmove(address_of(to), address_of(from), static_cast<size_t>(from.bytes));
  }

  std::shared_ptr<Device> ranks(int count) override {
    if (shared_->max_work != 0) {
      throw Error(ErrorCode::kLimit,
                  "max_work is counted for one rank, and the program is split among " +
                      std::to_string(count) + "; open the device without it");
    }
    const std::scoped_lock lock(ranks_mutex_);
    std::shared_ptr<Device> known = ranks_[count].lock();
    if (known != nullptr) return known;
    const int threads = shared_->pool->workers();
    std::vector<std::shared_ptr<Device>> devices;
    for (int rank = 0; rank < count; ++rank) {
      CpuCommandList::Shared own = *shared_;
      own.pool = std::make_shared<ThreadPool>(std::max(1, threads / count));
      own.interruption = {};  // it would ask on any thread
      devices.push_back(std::make_shared<CpuDevice>(std::move(own)));
    }
    auto pool = std::make_shared<ThreadPool>(std::min(count, threads));
    known = ranks_on_host(std::move(devices), std::move(pool), shared_->interruption);
    ranks_[count] = known;
    return known;
  }

  std::vector<MeasuredRate> measure_rates() override {
    return cpu::measure_rates(shared_->isa, *shared_->pool);
  }

  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return std::make_unique<CpuCommandList>(std::move(program), method, shared_);
  }

 private:
  std::shared_ptr<const CpuCommandList::Shared> shared_;
  std::mutex ranks_mutex_;
  std::map<int, std::weak_ptr<Device>> ranks_;  // by their number
};

}  // namespace

std::span<const OptionInfo> device_options() {
  static const OptionInfo kOptions[] = {
      {"threads", int64_t{0}, "workers; 0: one for each core it may use"},
      {"pin_threads", false, "fix each worker to a core"},
      {"isa", "", "instruction set; empty: $NPUSIM_ISA, or the best"},
      {"max_work", int64_t{0}, "the most steps of a method (docs/npubin.md); 0: any"},
  };
  return kOptions;
}

std::shared_ptr<Device> open_device(const DeviceOptions& options, const DeviceServices& services) {
  const Isa isa = choose_isa(options.text("isa"));
  const int64_t wanted = options.number("threads"), max_work = options.number("max_work");
  const bool pin_threads = options.flag("pin_threads");
  if (wanted < 0 || wanted > ThreadPool::kMaxWorkers) {
    throw Error(ErrorCode::kDevice, "threads must lie between 1 and " +
                                        std::to_string(ThreadPool::kMaxWorkers) +
                                        ", or be 0 for all cores; got " + std::to_string(wanted));
  }
  if (max_work < 0) {
    throw Error(ErrorCode::kDevice,
                "max_work is a count of steps, or 0 for any; got " + std::to_string(max_work));
  }
  if (pin_threads && !platform::can_pin_threads()) {
    throw Error(ErrorCode::kDevice,
                "this system cannot pin threads to cores; leave pin_threads off");
  }
  const std::vector<int> cores = platform::usable_cores();
  const int threads = static_cast<int>(wanted == 0 ? std::ssize(cores) : wanted);
  std::vector<int> pinned;
  if (pin_threads) pinned = cores;
  return std::make_shared<CpuDevice>(
      CpuCommandList::Shared{.isa = isa,
                             .pool = std::make_shared<ThreadPool>(threads, pinned),
                             .interruption = services.interruption,
                             .max_work = max_work,
                             .max_memory = options.number("max_memory")});
}

}  // namespace npusim::cpu
