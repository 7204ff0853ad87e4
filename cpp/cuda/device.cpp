#include "cpp/cuda/device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cpp/cuda/command_list.h"
#include "cpp/cuda/context.h"
#include "cpp/cuda/downloads.h"
#include "cpp/cuda/libraries.h"
#include "cpp/cuda/memory.h"
#include "cpp/cuda/module_store.h"
#include "cpp/cuda/ranks.h"
#include "cpp/cuda/staging.h"
#include "cpp/device_code/kernel_store.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

std::optional<int64_t> operands_of(std::span<const std::byte> image, const std::string& what) {
  return parse_image(image, what).operands;
}

constexpr CodeFormat kCodeFormat{"cuda", kImageKind, operands_of};

class CudaDevice final : public Device, public StreamDevice {
 public:
  // `ordinals`: of the devices of programs that are split among ranks (rank_ordinals).
  CudaDevice(std::shared_ptr<const Context> context, const DeviceServices& services,
             std::string ordinals = {})
      : context_(std::move(context)),
        services_(services),
        ordinals_(std::move(ordinals)),
        staging_(context_),
        downloads_(std::make_shared<Downloads>(context_)),
        store_(kCodeFormat, services.make_kernels),
        modules_(store_),
        libraries_(context_, services.library_folders) {}

  std::string_view name() const noexcept override { return "cuda"; }
  Addressing addressing() const noexcept override { return Addressing::kDevice; }
  bool host_visible() const noexcept override { return false; }
  bool synchronous() const noexcept override { return false; }
  int ordinal() const noexcept override { return context_->ordinal(); }
  std::optional<ForeignNames> foreign_names() const override {
    constexpr int32_t kDlCuda = 2;
    return ForeignNames{.dlpack_type = kDlCuda,
                        .dlpack_id = ordinal(),
                        .torch = "cuda:" + std::to_string(ordinal()),
                        .speaks_cuda = true};
  }
  StreamDevice* streams() noexcept override { return this; }
  uintptr_t stream() const noexcept override {
    return reinterpret_cast<uintptr_t>(context_->stream());
  }

  std::string kind() const override { return "cuda, " + context_->arch(); }

  std::string description() const override {
    const int64_t mebibytes = context_->total_memory() >> 20;
    return context_->name() + ", " + context_->arch() + ", " + std::to_string(mebibytes) +
           " MiB, driver for CUDA " + version_text(context_->driver().version);
  }

  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<CudaMemory>(context_, bytes);
  }
  std::shared_ptr<Memory> allocate_unset(int64_t bytes) override {
    return std::make_shared<CudaMemory>(context_, bytes, CudaMemory::Content::kAnything);
  }

  std::shared_ptr<Memory> allocate_watched(int64_t bytes) override {
    const Current current(*context_);
    return std::make_shared<VisibleMemory>(context_, bytes);
  }

  void upload(const MemoryRange& to, std::span<const std::byte> from) override {
    staging_.upload(to.offset, from);
  }

  void upload_all(std::span<const Upload> uploads) override { staging_.upload_all(uploads); }

  void download(std::span<std::byte> to, const MemoryRange& from) override {
    staging_.download(to, from.offset);
  }

  void copy(const MemoryRange& to, const MemoryRange& from) override {
    queue_copy(to, from);
    const Current current(*context_);
    context_->synchronize();
  }
  void queue_copy(const MemoryRange& to, const MemoryRange& from) override {
    const Driver& driver = context_->driver();
    const Current current(*context_);
    driver.check(driver.copy_on_device(to.offset, from.offset, static_cast<size_t>(from.bytes),
                                       context_->stream()),
                 "copy on the device");
  }
  bool queues_copies() const noexcept override { return true; }

  void synchronize() override { wait_for(stream()); }

  std::unique_ptr<Download> start_download(std::shared_ptr<const Memory> from) override {
    return downloads_->start(std::move(from));
  }

  void wait_for(uintptr_t stream) override {
    const Current current(*context_);
    context_->driver().check(
        context_->driver().stream_synchronize(reinterpret_cast<StreamHandle>(stream)),
        "wait for another library's work");
  }

  void order(uintptr_t before, uintptr_t after) override {
    const Current current(*context_);
    context_->order(reinterpret_cast<StreamHandle>(before), reinterpret_cast<StreamHandle>(after));
  }

  bool is_lasting(uintptr_t stream) const noexcept override {
    return stream == this->stream() || stream == kLegacyStream || stream == kPerThreadStream;
  }

  bool holds(uintptr_t address) const override {
    int ordinal = -1;
    const Driver& driver = context_->driver();
    if (driver.pointer_get_attribute(&ordinal, kDeviceOrdinal, address) != kSuccess) {
      throw Error(ErrorCode::kInput, "the address is not one of CUDA's");
    }
    return ordinal == this->ordinal();
  }

  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return encode_rank(std::move(program), method, {});
  }
  std::unique_ptr<CudaCommandList> encode_rank(std::shared_ptr<const Program> program,
                                               const Method& method, Seat seat) {
    return std::make_unique<CudaCommandList>(context_, std::move(program), method, store_, modules_,
                                             libraries_, std::move(seat));
  }

  std::shared_ptr<Device> ranks(int count) override {
    const std::lock_guard<ForkSafeMutex> locked(ranks_mutex_);
    std::shared_ptr<Device> known = ranks_[count].lock();
    if (known == nullptr) ranks_[count] = known = make_ranks(count);
    return known;
  }

 private:
  std::shared_ptr<Device> make_ranks(int count) const {
    const Driver& driver = context_->driver();
    int devices = 0;
    driver.check(driver.device_get_count(&devices), "count its devices");
    std::vector<std::shared_ptr<CudaDevice>> own;
    Contexts contexts;
    for (const int ordinal : rank_ordinals(ordinals_, this->ordinal(), count, devices)) {
      contexts.push_back(std::make_shared<const Context>(ordinal));
      own.push_back(std::make_shared<CudaDevice>(contexts.back(), services_));
    }
    const auto encode = [own](size_t rank, std::shared_ptr<const Program> program,
                              const Method& method, Seat seat) {
      return own[rank]->encode_rank(std::move(program), method, std::move(seat));
    };
    return ranks_on_devices({own.begin(), own.end()}, std::move(contexts),
                            services_.library_folders, encode);
  }

  std::shared_ptr<const Context> context_;
  const DeviceServices services_;
  const std::string ordinals_;
  ForkSafeMutex ranks_mutex_;
  std::map<int, std::weak_ptr<Device>> ranks_;  // by their number
  Staging staging_;
  std::shared_ptr<Downloads> downloads_;
  KernelStore store_;
  ModuleStore modules_;
  Libraries libraries_;
};

}  // namespace

std::span<const OptionInfo> device_options() {
  static const OptionInfo kOptions[] = {
      {"ordinal", int64_t{0}, "which of several, as the driver numbers them"},
      {"ordinals", "",
       "which of several, one for each rank of a split program, such as 2,3; empty: from ordinal "
       "on"},
  };
  return kOptions;
}

std::shared_ptr<Device> open_device(const DeviceOptions& options, const DeviceServices& services) {
  const std::string& named = options.text("ordinals");
  const int64_t number = std::clamp<int64_t>(options.number("ordinal"), INT32_MIN, INT32_MAX);
  const int ordinal = named.empty() ? static_cast<int>(number) : first_ordinal(named);
  const auto context = std::make_shared<const Context>(ordinal);
  return std::make_shared<CudaDevice>(context, services, named);
}

}  // namespace npusim::cuda
