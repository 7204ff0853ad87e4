// The smallest backend: every program loads, runs in no time, and leaves its outputs as they were.
// Measures what the runtime itself costs, and is the template for a new backend (README.md).
#include "cpp/null/device.h"

#include <cstring>
#include <vector>

namespace npusim::null {
namespace {

class NullMemory final : public Memory {
 public:
  explicit NullMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {}
  MemoryRange range() const noexcept override { return host_range(bytes_); }
  std::byte* host() const noexcept override { return const_cast<std::byte*>(bytes_.data()); }

 private:
  std::vector<std::byte> bytes_;
};

class NullCommandList final : public CommandList {
 public:
  explicit NullCommandList(size_t commands) : commands_(commands) {}
  void bind(uint32_t, const MemoryRange&) override {}
  void submit() override {}
  void submit_observed(const std::function<void(size_t)>& after) override {
    for (size_t i = 0; i < commands_; ++i) after(i);
  }

 private:
  size_t commands_;
};

class NullDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "null"; }
  std::string description() const override { return "null: accepts all, computes nothing"; }
  Addressing addressing() const noexcept override { return Addressing::kHost; }
  bool host_visible() const noexcept override { return true; }
  bool synchronous() const noexcept override { return true; }
  size_t alignment() const noexcept override { return 1; }
  std::optional<ForeignNames> foreign_names() const override { return ForeignNames{1, 0, "cpu"}; }
  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<NullMemory>(bytes);
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
  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program>,
                                      const Method& method) override {
    return std::make_unique<NullCommandList>(method.commands.size());
  }
};

}  // namespace

std::span<const OptionInfo> device_options() {
  return {};
}

std::shared_ptr<Device> open_device(const DeviceOptions&, const DeviceServices&) {
  return std::make_shared<NullDevice>();
}

}  // namespace npusim::null
