#include "cpp/metal/device.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cpp/device_code/kernel_store.h"
#include "cpp/metal/command_list.h"
#include "cpp/metal/context.h"
#include "cpp/metal/memory.h"
#include "cpp/metal/pipelines.h"
#include "cpp/metal/transfers.h"
#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr CodeFormat kCodeFormat{"metal", kImageKind, nullptr};

IndirectUse indirect_use(const std::string& name) {
  if (name == "auto") return IndirectUse::kAuto;
  if (name == "on") return IndirectUse::kOn;
  if (name == "off") return IndirectUse::kOff;
  throw Error(ErrorCode::kDevice,
              "the option indirect_commands of the device metal is auto, on or off, not " + name);
}

// Bytes that are read when the work before them has ended.
class MetalDownload final : public Download {
 public:
  explicit MetalDownload(std::shared_ptr<const Memory> from)
      : from_(std::move(from)), number_(storage_of(from_->range()).last_write.load()) {}

  std::span<std::byte> wait() override {
    if (from_ == nullptr) return bytes_;
    storage_of(from_->range()).context->finish(number_);
    const std::byte* const host = from_->host();
    bytes_.assign(host, host + from_->bytes());
    from_.reset();
    return bytes_;
  }

 private:
  std::shared_ptr<const Memory> from_;  // until it has been read
  uint64_t number_;
  std::vector<std::byte> bytes_;
};

class MetalDevice final : public Device {
 public:
  MetalDevice(std::shared_ptr<const Context> context, const DeviceServices& services)
      : context_(std::move(context)), store_(kCodeFormat, services.make_kernels) {}
  ~MetalDevice() override { context_->queue().wait_all(); }

  std::string_view name() const noexcept override { return "metal"; }
  std::string kind() const override { return "metal, " + context_->arch(); }
  std::string description() const override {
    const std::string family =
        context_->family() == 0 ? "no GPU of Apple's" : "GPU family " + context_->arch();
    return context_->name() + ", " + family + ", " +
           std::to_string(context_->total_memory() >> 20) + " MiB";
  }

  Addressing addressing() const noexcept override { return Addressing::kHandles; }
  bool host_visible() const noexcept override { return true; }
  bool synchronous() const noexcept override { return false; }
  int ordinal() const noexcept override { return context_->ordinal(); }

  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<MetalMemory>(context_, bytes);
  }
  std::shared_ptr<Memory> allocate_private(int64_t bytes) override {
    return std::make_shared<MetalMemory>(context_, bytes, Reach::kDevice);
  }
  std::shared_ptr<Memory> import_host(std::span<std::byte> bytes,
                                      std::shared_ptr<const void> owner) override {
    return imports_.show(context_, bytes, std::move(owner));
  }

  using Device::copy;
  using Device::download;
  using Device::upload;
  // Where both sides are memory of the host, what is waited for is the work that uses it, or writes
  // it.
  void upload(const MemoryRange& to, std::span<const std::byte> from) override {
    if (storage_of(to).is_private()) return upload_private(to, from);
    storage_of(to).wait();
    std::memcpy(host_of(to), from.data(), from.size());
  }
  void download(std::span<std::byte> to, const MemoryRange& from) override {
    if (storage_of(from).is_private()) return download_private(to, from);
    context_->finish(storage_of(from).last_write.load());
    std::memcpy(to.data(), host_of(from), to.size());
  }
  void copy(const MemoryRange& to, const MemoryRange& from) override {
    if (storage_of(to).is_private() || storage_of(from).is_private()) {
      std::vector<std::byte> content(static_cast<size_t>(from.bytes));
      download(content, from);
      return upload(to, content);
    }
    storage_of(to).wait();
    context_->finish(storage_of(from).last_write.load());
    std::memmove(host_of(to), host_of(from), static_cast<size_t>(from.bytes));
  }
  std::unique_ptr<Download> start_download(std::shared_ptr<const Memory> from) override {
    if (from->host() == nullptr) return Device::start_download(std::move(from));
    return std::make_unique<MetalDownload>(std::move(from));
  }
  void synchronize() override { context_->queue().wait_all(); }

  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return std::make_unique<MetalCommandList>(context_, std::move(program), method, store_,
                                              pipelines_);
  }

 private:
  std::shared_ptr<const Context> context_;
  HostImports imports_;
  Pipelines pipelines_;
  KernelStore store_;
};

}  // namespace

std::span<const OptionInfo> device_options() {
  static const OptionInfo kOptions[] = {
      {"ordinal", int64_t{0}, "which of several, as Metal lists them"},
      {"indirect_commands", std::string("auto"),
       "methods are kept in indirect command buffers: on, off, or auto: on GPU families from "
       "apple9 "
       "on"}};
  return kOptions;
}

std::shared_ptr<Device> open_device(const DeviceOptions& options, const DeviceServices& services) {
  const int64_t ordinal = std::clamp<int64_t>(options.number("ordinal"), INT32_MIN, INT32_MAX);
  const IndirectUse indirect = indirect_use(options.text("indirect_commands"));
  return std::make_shared<MetalDevice>(std::make_shared<const Context>(ordinal, indirect),
                                       services);
}

}  // namespace npusim::metal
