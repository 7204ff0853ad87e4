#include "engine/command_list.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "engine/settings.h"

namespace softmetal {
namespace {

std::mutex& execution() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

}  // namespace

std::uint64_t now_nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

double now_seconds() {
  return static_cast<double>(now_nanoseconds()) * 1e-9;
}

std::uint64_t EventState::value() const {
  const std::lock_guard lock(mutex_);
  return value_;
}

void EventState::set(std::uint64_t value) {
  std::vector<std::function<void(std::uint64_t)>> calls;
  {
    const std::lock_guard lock(mutex_);
    value_ = value;
    for (auto& [wanted, call] : listeners_) {
      if (call && wanted <= value) calls.push_back(std::exchange(call, nullptr));
    }
    std::erase_if(listeners_, [](const auto& listener) { return !listener.second; });
  }
  changed_.notify_all();
  for (auto& call : calls) call(value);
}

bool EventState::wait(std::uint64_t value, double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return value_ >= value; });
}

void EventState::notify(std::uint64_t value, std::function<void(std::uint64_t)> call) {
  std::uint64_t reached = 0;
  {
    const std::lock_guard lock(mutex_);
    if (value_ < value) {
      listeners_.emplace_back(value, std::move(call));
      return;
    }
    reached = value_;
  }
  call(reached);
}

CommandList::Status CommandList::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

void CommandList::set_status(Status status) {
  {
    const std::lock_guard lock(mutex_);
    status_ = status;
  }
  changed_.notify_all();
}

Failure CommandList::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void CommandList::wait_completed() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return handlers_done_; });
}

void CommandList::wait_scheduled() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return status_ >= kScheduled; });
}

void CommandList::execute() {
  if (begin) begin();
  set_status(kScheduled);
  for (auto& handler : scheduled_handlers) handler();
  start = now_seconds();
  Failure failure;
  for (std::size_t i = 0; i < steps.size() && !failure; ++i) {
    if (steps[i].waits) {
      failure = steps[i].run();
    } else {
      const std::lock_guard lock(execution());
      failure = steps[i].run();
    }
  }
  end = now_seconds();
  steps.clear();  // what they hold is let go before anybody sees the end
  if (failure) std::fprintf(stderr, "SoftMetal: %s\n", failure.message.c_str());
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    status_ = failure ? kError : kCompleted;
  }
  for (auto& handler : completed_handlers) handler();
  // What the handlers hold is let go before the host goes on.
  completed_handlers.clear();
  scheduled_handlers.clear();
  if (last) last();
  last = nullptr;
  {
    const std::lock_guard lock(mutex_);
    handlers_done_ = true;
  }
  changed_.notify_all();
}

void Queue::enqueue(std::shared_ptr<CommandList> list) {
  const std::lock_guard lock(mutex_);
  list->set_status(CommandList::kEnqueued);
  lists_.push_back(std::move(list));
}

void Queue::commit(const std::shared_ptr<CommandList>& list) {
  const std::lock_guard lock(mutex_);
  if (std::find(lists_.begin(), lists_.end(), list) == lists_.end()) lists_.push_back(list);
  list->set_status(CommandList::kCommitted);
  if (!started_) std::thread([self = shared_from_this()] { self->work(); }).detach();
  started_ = true;
  changed_.notify_all();
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  // What was enqueued and never committed will not come.
  std::erase_if(lists_, [](const auto& l) { return l->status() == CommandList::kEnqueued; });
  changed_.notify_all();
}

void Queue::work() {
  for (;;) {
    std::shared_ptr<CommandList> list;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] {
        return (closed_ && lists_.empty()) ||
               (!lists_.empty() && lists_.front()->status() == CommandList::kCommitted);
      });
      if (lists_.empty()) return;
      list = lists_.front();
      lists_.pop_front();
    }
    if (settings().delay_us > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(settings().delay_us));
    }
    list->execute();
  }
}

}  // namespace softmetal
