#include "cpp/cuda/device.h"

#include <string>
#include <utility>
#include <vector>

#include "cpp/cuda/command_list.h"
#include "cpp/cuda/context.h"
#include "cpp/cuda/downloads.h"
#include "cpp/cuda/kernel_store.h"
#include "cpp/cuda/libraries.h"
#include "cpp/cuda/memory.h"
#include "cpp/cuda/staging.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<const Context> context, const DeviceOptions& options)
      : context_(std::move(context)),
        staging_(context_),
        downloads_(std::make_shared<Downloads>(context_)),
        store_(options.make_kernels),
        libraries_(context_, options.library_folders) {}

  std::string_view name() const noexcept override { return "cuda"; }
  bool shares_host_memory() const noexcept override { return false; }
  int ordinal() const noexcept override { return context_->ordinal(); }
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

  std::shared_ptr<Memory> allocate_visible(int64_t bytes) override {
    const Current current(*context_);
    return std::make_shared<VisibleMemory>(context_, bytes);
  }

  void upload(Memory& to, int64_t offset, std::span<const std::byte> from) override {
    check_range(to, offset, static_cast<int64_t>(from.size()));
    staging_.upload(address_of(to.data() + offset), from);
  }

  void download(std::span<std::byte> to, const Memory& from, int64_t offset) override {
    check_range(from, offset, static_cast<int64_t>(to.size()));
    staging_.download(to, address_of(from.data() + offset));
  }

  void copy(Memory& to, int64_t to_offset, const Memory& from, int64_t from_offset,
            int64_t bytes) override {
    check_range(to, to_offset, bytes);
    check_range(from, from_offset, bytes);
    const Driver& driver = context_->driver();
    const Current current(*context_);
    driver.check(driver.copy_on_device(address_of(to.data() + to_offset),
                                       address_of(from.data() + from_offset),
                                       static_cast<size_t>(bytes), context_->stream()),
                 "copy on the device");
    context_->synchronize();
  }

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

  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return std::make_unique<CudaCommandList>(context_, std::move(program), method, store_,
                                             libraries_);
  }

 private:
  std::shared_ptr<const Context> context_;
  Staging staging_;
  std::shared_ptr<Downloads> downloads_;
  KernelStore store_;
  Libraries libraries_;
};

}  // namespace

std::shared_ptr<Device> open_device(const DeviceOptions& options) {
  return std::make_shared<CudaDevice>(std::make_shared<const Context>(options.ordinal), options);
}

}  // namespace npusim::cuda
