// A device as Apple's GPUs are, over the CPU's kernels: the host reads its memory directly, while
// work is done later; memory is known by handles. It is built to show what a runtime takes for
// granted. Work is done when somebody waits for it and not before, so that a missing wait shows the
// old values, every time. A handle is a small number and memory begins somewhere after the start
// of its storage, so that who takes an offset for an address, or forgets it, is caught.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpp/runtime/device.h"

namespace npusim::tests {

// Work in order, done up to where somebody waits for.
class LazyQueue {
 public:
  // Returns the job's number, to be waited for.
  uint64_t put(std::function<void()> job) {
    const std::lock_guard<std::recursive_mutex> locked(mutex_);
    jobs_.push_back(std::move(job));
    return done_ + jobs_.size();
  }
  void wait(uint64_t number) {
    const std::lock_guard<std::recursive_mutex> locked(mutex_);
    while (done_ < number && !jobs_.empty()) {
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      ++done_;
      job();
    }
  }
  void drain() { wait(UINT64_MAX); }
  size_t waiting() {
    const std::lock_guard<std::recursive_mutex> locked(mutex_);
    return jobs_.size();
  }

 private:
  std::recursive_mutex mutex_;  // what a job drops may put another one
  std::deque<std::function<void()>> jobs_;
  uint64_t done_ = 0;
};

// All storage of a device, by handle.
class Storages {
 public:
  static constexpr uintptr_t kStart = 256;  // of memory in its storage

  MemoryRange add(std::byte* data, int64_t bytes) {
    const std::lock_guard<std::mutex> locked(mutex_);
    known_[++latest_] = {data, bytes};
    return {latest_, kStart, bytes};
  }
  void remove(uintptr_t handle) {
    const std::lock_guard<std::mutex> locked(mutex_);
    known_.erase(handle);
  }
  // Throws std::logic_error for what no caller may come with.
  std::byte* find(const MemoryRange& range) {
    const std::lock_guard<std::mutex> locked(mutex_);
    const auto found = known_.find(range.storage);
    if (found == known_.end()) {
      throw std::logic_error("there is no storage " + std::to_string(range.storage));
    }
    const auto& [data, bytes] = found->second;
    const auto from = static_cast<int64_t>(range.offset - kStart);
    if (range.offset < kStart || range.bytes < 0 || from + range.bytes > bytes) {
      throw std::logic_error("a range leaves its storage");
    }
    return data + from;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, std::pair<std::byte*, int64_t>> known_;
  uintptr_t latest_ = 1000;
};

// What a device, its memory and its lists have in common; lives as long as any of them.
struct UnifiedParts {
  std::shared_ptr<Device> cpu;
  LazyQueue queue;
  Storages storages;
};

class UnifiedMemory final : public Memory {
 public:
  // Over `held`, or where that is null over memory of its own.
  UnifiedMemory(std::shared_ptr<UnifiedParts> parts, int64_t bytes, std::span<std::byte> lent,
                std::shared_ptr<const void> owner)
      : parts_(std::move(parts)), owner_(std::move(owner)), data_(lent.data()) {
    if (data_ == nullptr) {
      const auto own = parts_->cpu->allocate(bytes);
      data_ = own->host();
      owner_ = own;
    }
    range_ = parts_->storages.add(data_, bytes);
  }
  // After the work that uses it.
  ~UnifiedMemory() override {
    parts_->queue.put([parts = std::weak_ptr(parts_), handle = range_.storage, owner = owner_] {
      if (const auto alive = parts.lock()) alive->storages.remove(handle);
    });
  }
  MemoryRange range() const noexcept override { return range_; }
  std::byte* host() const noexcept override { return is_private_ ? nullptr : data_; }
  void hide() noexcept { is_private_ = true; }

 private:
  bool is_private_ = false;
  std::shared_ptr<UnifiedParts> parts_;
  std::shared_ptr<const void> owner_;
  std::byte* data_;
  MemoryRange range_;
};

class UnifiedList final : public CommandList {
 public:
  UnifiedList(std::unique_ptr<CommandList> list, std::shared_ptr<UnifiedParts> parts, bool can_fail)
      : list_(std::move(list)), parts_(std::move(parts)), can_fail_(can_fail) {}
  ~UnifiedList() override { parts_->queue.wait(latest_); }

  void bind(uint32_t buffer, const MemoryRange& at) override {
    parts_->storages.find(at);
    bound_[buffer] = brought_[buffer] = at;
  }
  void submit() override {
    enqueue(0);
    settle();
  }
  void enqueue(uintptr_t queue) override {
    if (queue != 0) throw std::logic_error("there are no streams");
    latest_ = parts_->queue.put([this, bound = bound_] {
      try {
        resolve(bound);
        list_->submit();
      } catch (...) {
        if (!failure_) failure_ = std::current_exception();
      }
    });
  }
  void settle() override {
    parts_->queue.wait(latest_);
    if (const auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
  }
  bool can_fail() const noexcept override { return can_fail_; }
  void submit_observed(const std::function<void(size_t)>& after) override {
    parts_->queue.drain();
    resolve(bound_);
    list_->submit_observed([&](size_t index) {
      brought_.clear();
      after(index);
      parts_->queue.drain();
      resolve(brought_);  // what commands before need may be gone
    });
  }

 private:
  using Bound = std::map<uint32_t, MemoryRange>;
  void resolve(const Bound& bound) {
    for (const auto& [buffer, at] : bound) {
      std::byte* const data = parts_->storages.find(at);
      list_->bind(buffer, host_range({data, static_cast<size_t>(at.bytes)}));
    }
  }

  std::unique_ptr<CommandList> list_;
  std::shared_ptr<UnifiedParts> parts_;
  const bool can_fail_;
  Bound bound_, brought_;  // brought: since the command before
  uint64_t latest_ = 0;
  std::exception_ptr failure_;
};

class UnifiedDevice final : public Device {
 public:
  struct Options {
    bool can_fail = false;  // what its lists say
    bool imports = false;   // memory of the host that begins at a multiple of 64 bytes
  };

  // Runs over the kernels of `cpu`.
  explicit UnifiedDevice(std::shared_ptr<Device> cpu) : UnifiedDevice(std::move(cpu), Options()) {}
  UnifiedDevice(std::shared_ptr<Device> cpu, Options options) : options_(options) {
    parts_->cpu = std::move(cpu);
  }
  ~UnifiedDevice() override { parts_->queue.drain(); }

  std::string_view name() const noexcept override { return "unified"; }
  std::string description() const override { return "the CPU's kernels, as a GPU would run them"; }
  Addressing addressing() const noexcept override { return Addressing::kHandles; }
  bool host_visible() const noexcept override { return true; }
  bool synchronous() const noexcept override { return false; }

  std::shared_ptr<Memory> allocate(int64_t bytes) override {
    return std::make_shared<UnifiedMemory>(parts_, bytes, std::span<std::byte>(), nullptr);
  }
  std::shared_ptr<Memory> allocate_private(int64_t bytes) override {
    auto memory = std::make_shared<UnifiedMemory>(parts_, bytes, std::span<std::byte>(), nullptr);
    memory->hide();
    return memory;
  }
  std::shared_ptr<Memory> import_host(std::span<std::byte> bytes,
                                      std::shared_ptr<const void> owner) override {
    const bool fits = !bytes.empty() && reinterpret_cast<uintptr_t>(bytes.data()) % 64 == 0;
    if (!options_.imports || !fits) return nullptr;
    return std::make_shared<UnifiedMemory>(parts_, std::ssize(bytes), bytes, std::move(owner));
  }
  using Device::copy;
  using Device::download;
  using Device::upload;
  void upload(const MemoryRange& to, std::span<const std::byte> from) override {
    std::byte* const at = find(to, from.size());
    parts_->queue.put([at, bytes = std::vector(from.begin(), from.end())] {
      std::copy(bytes.begin(), bytes.end(), at);
    });
  }
  void download(std::span<std::byte> to, const MemoryRange& from) override {
    const std::byte* const at = find(from, to.size());
    synchronize();
    std::memcpy(to.data(), at, to.size());
  }
  void copy(const MemoryRange& to, const MemoryRange& from) override {
    const auto size = static_cast<size_t>(from.bytes);
    std::byte *const at = find(to, size), *const source = find(from, size);
    parts_->queue.put([at, source, size] { std::memmove(at, source, size); });
    synchronize();
  }
  std::unique_ptr<Download> start_download(std::shared_ptr<const Memory> from) override {
    return std::make_unique<Arriving>(parts_, std::move(from));
  }
  void synchronize() override { parts_->queue.drain(); }
  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return std::make_unique<UnifiedList>(parts_->cpu->encode(std::move(program), method), parts_,
                                         options_.can_fail);
  }

  // Jobs that nobody has waited for.
  size_t waiting() { return parts_->queue.waiting(); }

 private:
  class Arriving final : public Download {
   public:
    Arriving(std::shared_ptr<UnifiedParts> parts, std::shared_ptr<const Memory> from)
        : parts_(std::move(parts)),
          bytes_(std::make_shared<std::vector<std::byte>>(static_cast<size_t>(from->bytes()))) {
      number_ = parts_->queue.put([bytes = bytes_, from = std::move(from)] {
        std::memcpy(bytes->data(), from->host(), bytes->size());
      });
    }
    std::span<std::byte> wait() override {
      parts_->queue.wait(number_);
      return *bytes_;
    }

   private:
    std::shared_ptr<UnifiedParts> parts_;
    std::shared_ptr<std::vector<std::byte>> bytes_;
    uint64_t number_ = 0;
  };

  std::byte* find(const MemoryRange& range, size_t bytes) {
    if (range.bytes != static_cast<int64_t>(bytes)) throw std::logic_error("sizes differ");
    return parts_->storages.find(range);
  }

  Options options_;
  std::shared_ptr<UnifiedParts> parts_ = std::make_shared<UnifiedParts>();
};

}  // namespace npusim::tests
