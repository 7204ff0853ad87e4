// The CPU behind a queue: what is enqueued runs later, on another thread, in order, each run some
// microseconds after the last. Uploads, downloads and copies wait for what was queued before them.
// So what a runtime does ahead of its device can be seen without one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "cpp/runtime/device.h"

namespace npusim::tests {

class Queue {
 public:
  Queue() : thread_([this] { work(); }) {}
  ~Queue() {
    {
      const std::lock_guard<std::mutex> locked(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void put(std::function<void()> job) {
    {
      const std::lock_guard<std::mutex> locked(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }
  void drain() {
    std::unique_lock<std::mutex> locked(mutex_);
    changed_.wait(locked, [this] { return jobs_.empty(); });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> locked(mutex_);
    for (;;) {
      changed_.wait(locked, [this] { return ends_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const auto job = jobs_.front();
      locked.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      job();
      locked.lock();
      jobs_.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ends_ = false;
  std::thread thread_;
};

class QueueList final : public CommandList {
 public:
  QueueList(std::unique_ptr<CommandList> list, std::shared_ptr<Queue> queue)
      : list_(std::move(list)), queue_(std::move(queue)) {}
  ~QueueList() override { queue_->drain(); }

  void bind(uint32_t buffer, const MemoryRange& at) override { bound_[buffer] = at; }
  void submit() override {
    enqueue(0);
    settle();
  }
  void enqueue(uintptr_t) override {
    queue_->put([this, bound = bound_] {
      for (const auto& [buffer, at] : bound) list_->bind(buffer, at);
      try {
        list_->submit();
      } catch (...) {
        failure_ = std::current_exception();
      }
    });
  }
  void settle() override {
    queue_->drain();
    if (const auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
  }
  void submit_observed(const std::function<void(size_t)>&) override { submit(); }

 private:
  std::unique_ptr<CommandList> list_;
  std::shared_ptr<Queue> queue_;
  std::map<uint32_t, MemoryRange> bound_;
  std::exception_ptr failure_;
};

class QueueDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "queue"; }
  std::string description() const override { return "the CPU behind a queue"; }
  Addressing addressing() const noexcept override { return Addressing::kDevice; }
  bool host_visible() const noexcept override { return false; }
  bool synchronous() const noexcept override { return false; }
  std::shared_ptr<Memory> allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
  std::shared_ptr<Memory> allocate_watched(int64_t bytes) override { return cpu_->allocate(bytes); }
  void upload(const MemoryRange& to, std::span<const std::byte> from) override {
    queue_->drain();
    cpu_->upload(to, from);
  }
  void download(std::span<std::byte> to, const MemoryRange& from) override {
    queue_->drain();
    cpu_->download(to, from);
  }
  void copy(const MemoryRange& to, const MemoryRange& from) override {
    queue_->drain();
    cpu_->copy(to, from);
  }
  void queue_copy(const MemoryRange& to, const MemoryRange& from) override {
    queue_->put([cpu = cpu_, to, from] { cpu->copy(to, from); });
  }
  bool queues_copies() const noexcept override { return true; }
  void synchronize() override { queue_->drain(); }
  std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                      const Method& method) override {
    return std::make_unique<QueueList>(cpu_->encode(std::move(program), method), queue_);
  }

 private:
  std::shared_ptr<Device> cpu_ = open_device("cpu", {{"threads", 1}});
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace npusim::tests
