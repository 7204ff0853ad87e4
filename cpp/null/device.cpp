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
  std::byte* data() const noexcept override { return const_cast<std::byte*>(bytes_.data()); }
  int64_t bytes() const noexcept override { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::vector<std::byte> bytes_;
};

class NullCommandList final : public CommandList {
 public:
  explicit NullCommandList(size_t commands) : commands_(commands) {}
  void bind(uint32_t, std::byte*) override {}
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
  bool shares_host_memory() const noexcept override { return true; }
  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<NullMemory>(bytes);
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
  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program>,
                                      const Method& method) override {
    return std::make_unique<NullCommandList>(method.commands.size());
  }
};

}  // namespace

std::shared_ptr<Device> open_device(const DeviceOptions&) {
  return std::make_shared<NullDevice>();
}

}  // namespace npusim::null
