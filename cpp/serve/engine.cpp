// The desk is where callers and the thread meet: messages go in, events come out, both under one
// lock, which neither holds while a step runs. Only the thread touches the batch.
#include "cpp/serve/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cpp/platform/forks.h"
#include "cpp/runtime/error.h"

namespace npusim::serve {
namespace {

// What callers tell the thread.
struct Message {
  enum class Kind : uint8_t { kSubmit, kCancel, kAllow } kind;
  RequestId id;
  std::vector<int64_t> tokens = {};  // of kSubmit
  RequestOptions options = {};
  TokenMask mask = {};  // of kAllow
};

// A wait that a clock can count, whatever was asked.
std::chrono::duration<double> at_most(double seconds) {
  constexpr double kLongest = 1e6;
  return std::chrono::duration<double>(seconds > 0 ? std::min(seconds, kLongest) : 0.0);
}

}  // namespace

class Engine::Desk {
 public:
  Desk(std::shared_ptr<StepRunner> runner, const EngineOptions& options)
      : batch_(std::move(runner), options.batch),
        most_open_(static_cast<uint64_t>(options.max_waiting + batch_.max_requests())),
        stats_(batch_.stats()),
        thread_([this] { serve(); }) {}
  ~Desk() { close(); }

  const Batch& batch() const noexcept { return batch_; }

  RequestId submit(std::vector<int64_t> tokens, RequestOptions options) {
    batch_.check(tokens, options);
    const std::lock_guard lock(mutex_);
    require_open();
    if (open_.size() >= most_open_) {
      throw Error(ErrorCode::kBusy, "The queue is full: " + std::to_string(open_.size()) +
                                        " requests run or wait, as many as may; try again later");
    }
    const RequestId id = ++latest_;
    open_.insert(id);
    send({Message::Kind::kSubmit, id, std::move(tokens), std::move(options)});
    return id;
  }

  void cancel(RequestId id) {
    const std::lock_guard lock(mutex_);
    if (open_.erase(id) > 0) send({Message::Kind::kCancel, id});
    if (const auto place = places_.find(id); place != places_.end()) {
      events_[place->second] = {};  // number 0: nobody's
      places_.erase(place);
    }
    has_news_.notify_all();
  }

  void allow(RequestId id, TokenMask mask) {
    const std::lock_guard lock(mutex_);
    if (open_.contains(id))
      send({.kind = Message::Kind::kAllow, .id = id, .mask = std::move(mask)});
  }

  std::vector<Event> poll(double seconds) {
    std::unique_lock lock(mutex_);
    has_news_.wait_for(lock, at_most(seconds), [&] { return !places_.empty() || is_closed_; });
    places_.clear();
    std::vector<Event> events = std::exchange(events_, {});
    std::erase_if(events, [](const Event& event) { return event.request == 0; });
    return events;
  }

  BatchStats stats() const {
    const std::lock_guard lock(mutex_);
    BatchStats stats = stats_;
    stats.waiting = static_cast<int64_t>(open_.size()) - stats.running;
    stats.waiting = std::max<int64_t>(0, stats.waiting);
    return stats;
  }

  bool drain(double seconds) {
    std::unique_lock lock(mutex_);
    is_draining_ = true;
    return has_news_.wait_for(lock, at_most(seconds), [&] { return open_.empty(); });
  }

  void close() {
    std::thread ending;
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
      has_messages_.notify_one();
      ending = std::move(thread_);
    }
    if (ending.joinable()) ending.join();
    const std::lock_guard lock(mutex_);
    has_news_.notify_all();
  }

 private:
  void require_open() const {
    if (!failure_.empty()) throw Error(ErrorCode::kDevice, failure_);
    if (is_closed_) throw Error(ErrorCode::kBusy, "The engine was closed; make a new one");
    if (is_draining_) {
      throw Error(ErrorCode::kBusy, "The engine takes no more requests: it is shutting down");
    }
  }

  void send(Message message) {
    messages_.push_back(std::move(message));
    has_messages_.notify_one();
  }

  // ---- on the engine's thread
  void serve() {
    for (bool has_work = false; take_messages(!has_work);) {
      act();
      try {
        has_work = batch_.step();
      } catch (const std::exception& error) {  // no memory for the host's side of a step
        batch_.end_all(Error(ErrorCode::kDevice, error.what()));
        has_work = false;
      }
      tell();
    }
    act();  // what came last is told of its end, too
    batch_.end_all(Error(ErrorCode::kBusy, "The engine was closed"));
    tell();
  }

  // Returns false when it is time to end.
  bool take_messages(bool may_wait) {
    std::unique_lock lock(mutex_);
    if (may_wait) has_messages_.wait(lock, [&] { return !messages_.empty() || is_closed_; });
    taken_.clear();
    taken_.swap(messages_);
    return !is_closed_;
  }

  void act() {
    for (Message& message : taken_) act_on(message);
  }

  void act_on(Message& message) {
    switch (message.kind) {
      case Message::Kind::kSubmit:
        return batch_.submit(message.id, std::move(message.tokens), std::move(message.options));
      case Message::Kind::kCancel:
        return batch_.cancel(message.id);
      case Message::Kind::kAllow:
        return batch_.allow(message.id, std::move(message.mask));
    }
  }

  void tell() {
    std::vector<Event> events = batch_.take_events();
    const std::lock_guard lock(mutex_);
    stats_ = batch_.stats();
    failure_ = batch_.failure();
    for (Event& event : events) {
      if (!open_.contains(event.request)) continue;  // cancelled meanwhile
      if (event.is_last()) open_.erase(event.request);
      const auto [place, is_new] = places_.emplace(event.request, events_.size());
      if (is_new) {
        events_.push_back(std::move(event));
      } else {
        events_[place->second].add(std::move(event));
      }
    }
    if (!events.empty()) has_news_.notify_all();
  }

  Batch batch_;
  const uint64_t most_open_;
  std::vector<Message> taken_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable has_messages_, has_news_;
  std::vector<Message> messages_;
  std::vector<Event> events_;                     // those of number 0 are nobody's any more
  std::unordered_map<RequestId, size_t> places_;  // in events_
  std::unordered_set<RequestId> open_;            // requests that have not ended
  RequestId latest_ = 0;
  BatchStats stats_;
  std::string failure_;
  bool is_draining_ = false, is_closed_ = false;

  std::thread thread_;  // last: begins when all else is there
};

Engine::Engine(std::shared_ptr<StepRunner> runner, const EngineOptions& options)
    : process_(fork_depth()) {
  if (options.max_waiting < 0 || options.max_waiting > INT32_MAX) {
    throw Error(ErrorCode::kLimit, "max_waiting must be 0 to 2147483647");
  }
  try {
    desk_ = std::make_unique<Desk>(std::move(runner), options);
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kDevice, std::string("no thread for the engine: ") + error.what());
  }
}

Engine::~Engine() {
  // What a thread of the parent may have been changing is left as it is.
  if (!is_here()) static_cast<void>(desk_.release());
}

bool Engine::is_here() const noexcept {
  return fork_depth() == process_;
}

Engine::Desk& Engine::desk() const {
  if (is_here()) return *desk_;
  throw Error(ErrorCode::kBusy,
              "this engine runs in the process that this one was forked from; make a new one here");
}

RequestId Engine::submit(std::vector<int64_t> tokens, RequestOptions options) {
  return desk().submit(std::move(tokens), std::move(options));
}

void Engine::cancel(RequestId id) {
  desk().cancel(id);
}

void Engine::allow(RequestId id, TokenMask mask) {
  const auto words = static_cast<size_t>((facts().vocab_size + 31) / 32);
  if (mask.size() != words) {
    throw Error(ErrorCode::kInput, "a mask of " + std::to_string(mask.size()) +
                                       " words of 32 bits; it must have " + std::to_string(words));
  }
  desk().allow(id, std::move(mask));
}

std::vector<Event> Engine::poll(double seconds) {
  return desk().poll(seconds);
}

BatchStats Engine::stats() const {
  return desk().stats();
}

const RunnerFacts& Engine::facts() const noexcept {
  return desk_->batch().facts();
}

int64_t Engine::max_requests() const noexcept {
  return desk_->batch().max_requests();
}

bool Engine::drain(double seconds) {
  return desk().drain(seconds);
}

void Engine::close() {
  desk().close();
}

}  // namespace npusim::serve
