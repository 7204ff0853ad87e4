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
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kNowhere = SIZE_MAX;
  static constexpr std::chrono::duration<double> kLook{1};  // of waiting, between two looks
  static constexpr std::chrono::milliseconds kLongestGathering{15};
  // What a reader has not polled.
  struct Inbox {
    std::condition_variable has_news;
    std::vector<Event> events;  // those of number 0 are nobody's any more
    size_t news = 0;            // how many of them are somebody's
    bool is_left = false;
  };
  struct Known {
    Inbox* inbox;
    size_t place = kNowhere;  // of its event, in the inbox
    bool has_ended = false;
  };

 public:
  Desk(std::shared_ptr<StepRunner> runner, const EngineOptions& options)
      : batch_(std::move(runner), options.batch),
        most_open_(static_cast<uint64_t>(options.max_waiting + batch_.max_requests())),
        most_step_(options.most_step_seconds),
        inboxes_{{0, std::make_shared<Inbox>()}},
        stats_(batch_.stats()),
        thread_([this] { serve(); }) {}
  ~Desk() { close(); }

  const Batch& batch() const noexcept { return batch_; }

  RequestId submit(std::vector<int64_t> tokens, RequestOptions options, ReaderId reader) {
    batch_.check(tokens, options);
    const std::lock_guard lock(mutex_);
    require_open();
    if (open_ >= most_open_) {
      throw Error(ErrorCode::kBusy, "The queue is full: " + std::to_string(open_) +
                                        " requests run or wait, as many as may; try again later");
    }
    const RequestId id = ++latest_;
    known_.try_emplace(id, inbox_of(reader).get());
    ++open_;
    send({Message::Kind::kSubmit, id, std::move(tokens), std::move(options)});
    return id;
  }

  void cancel(RequestId id) {
    const std::lock_guard lock(mutex_);
    if (const auto found = known_.find(id); found != known_.end()) forget(found);
    if (open_ == 0) all_ended_.notify_all();
  }

  void leave(ReaderId reader) {
    const std::lock_guard lock(mutex_);
    const auto left = inboxes_.find(reader);
    if (left == inboxes_.end()) return;
    for (auto next = known_.begin(); next != known_.end();) {
      const auto each = next++;
      if (each->second.inbox == left->second.get()) forget(each);
    }
    left->second->is_left = true;
    left->second->has_news.notify_all();
    inboxes_.erase(left);
    if (open_ == 0) all_ended_.notify_all();
  }

  void allow(RequestId id, TokenMask mask) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(id);
    if (found != known_.end() && !found->second.has_ended)
      send({.kind = Message::Kind::kAllow, .id = id, .mask = std::move(mask)});
  }

  std::vector<Event> poll(double seconds, ReaderId reader) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Inbox> inbox = inbox_of(reader);
    const auto has_news = [&] { return inbox->news > 0 || inbox->is_left || is_closed_; };
    for (auto left = at_most(seconds);
         !inbox->has_news.wait_for(lock, std::min(left, kLook), has_news); left -= kLook) {
      look();
      if (left <= kLook) break;
    }
    for (const Event& event : inbox->events) {
      const auto found = known_.find(event.request);
      if (found == known_.end()) continue;
      found->second.place = kNowhere;
      if (found->second.has_ended) known_.erase(found);
    }
    inbox->news = 0;
    std::vector<Event> events = std::exchange(inbox->events, {});
    lock.unlock();
    std::erase_if(events, [](const Event& event) { return event.request == 0; });
    return events;
  }

  BatchStats stats() const {
    const std::lock_guard lock(mutex_);
    BatchStats stats = stats_;
    stats.waiting = static_cast<int64_t>(open_) - stats.running;
    stats.waiting = std::max<int64_t>(0, stats.waiting);
    return stats;
  }

  std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  bool drain(double seconds) {
    std::unique_lock lock(mutex_);
    is_draining_ = true;
    return all_ended_.wait_for(lock, at_most(seconds), [&] { return open_ == 0; });
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
    for (const auto& [_, inbox] : inboxes_) inbox->has_news.notify_all();
    all_ended_.notify_all();
  }

 private:
  void require_open() const {
    if (!failure_.empty()) throw Error(ErrorCode::kDevice, failure_);
    if (is_closed_) throw Error(ErrorCode::kBusy, "The engine was closed; make a new one");
    if (is_draining_) {
      throw Error(ErrorCode::kBusy, "The engine takes no more requests: it is shutting down");
    }
  }

  const std::shared_ptr<Inbox>& inbox_of(ReaderId reader) {
    std::shared_ptr<Inbox>& inbox = inboxes_[reader];
    if (inbox == nullptr) inbox = std::make_shared<Inbox>();
    return inbox;
  }

  // Ends a request of which nobody is to hear any more.
  void forget(std::unordered_map<RequestId, Known>::iterator at) {
    const auto& [id, known] = *at;
    if (!known.has_ended) {
      --open_;
      send({Message::Kind::kCancel, id});
    }
    if (known.place != kNowhere) {
      known.inbox->events[known.place] = {};  // number 0: nobody's
      --known.inbox->news;
    }
    known_.erase(at);
  }

  // Counts for how long a step has been running, and ends its requests when that is too long.
  void look() {
    const Clock::time_point now = Clock::now();
    const std::chrono::duration<double> passed = now - looked_;
    looked_ = now;
    if (!is_stepping_ || is_hung_ || most_step_.count() == 0) return;
    stepping_ += std::min(passed, kLook);
    if (stepping_ >= most_step_) give_up();
  }

  void give_up() {
    is_hung_ = true;
    failure_ = "The engine hangs: a step has not ended for " +
               std::to_string(static_cast<int64_t>(stepping_.count())) + " s";
    std::vector<RequestId> open;
    for (const auto& [id, known] : known_)
      if (!known.has_ended) open.push_back(id);
    std::sort(open.begin(), open.end());
    for (const RequestId id : open) {
      Event event{.request = id, .error = Error(ErrorCode::kDevice, failure_)};
      tell_of(event);
      send({Message::Kind::kCancel, id});
    }
    for (const auto& [_, inbox] : inboxes_) inbox->has_news.notify_all();
    all_ended_.notify_all();
  }

  void send(Message message) {
    messages_.push_back(std::move(message));
    has_messages_.notify_one();
  }

  // ---- on the engine's thread
  void serve() {
    for (bool has_work = false; take_messages(!has_work);) {
      const Clock::time_point heard = Clock::now();
      act();
      desk_took_ += Clock::now() - heard;
      gather();
      try {
        has_work = batch_.step();
      } catch (const std::exception& error) {  // no memory for the host's side of a step
        batch_.end_all(Error(ErrorCode::kDevice, error.what()));
        has_work = false;
      }
      const Clock::time_point made = Clock::now();
      tell();
      desk_took_ += Clock::now() - made;
    }
    act();  // what came last is told of its end, too
    batch_.end_all(Error(ErrorCode::kBusy, "The engine was closed"));
    tell();
  }

  // Returns false when it is time to end.
  bool take_messages(bool may_wait) {
    std::unique_lock lock(mutex_);
    is_stepping_ = is_hung_ = false;
    if (may_wait) has_messages_.wait(lock, [&] { return !messages_.empty() || is_closed_; });
    taken_.clear();
    taken_.swap(messages_);
    is_stepping_ = true;
    stepping_ = {};
    return !is_closed_;
  }

  // Lets requests begin together that come together: beside one that was alone in its step, the
  // others' prompts would come in small parts. One that is alone waits for a share of its step.
  void gather() {
    const Clock::time_point latest = Clock::now() + kLongestGathering;
    for (double wait = batch_.gathering_seconds(); wait > 0; wait = batch_.gathering_seconds()) {
      const Clock::time_point enough =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(at_most(wait));
      {
        std::unique_lock lock(mutex_);
        const bool came = has_messages_.wait_until(
            lock, std::min(latest, enough), [&] { return !messages_.empty() || is_closed_; });
        if (!came || is_closed_) return;
        taken_.clear();
        taken_.swap(messages_);
      }
      act();
    }
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
    {
      const std::lock_guard lock(mutex_);
      stats_ = batch_.stats();
      stats_.desk_seconds = desk_took_.count();
      failure_ = batch_.failure();
      if (inboxes_.size() == 1 && inboxes_.begin()->second->events.empty())
        keep(*inboxes_.begin()->second, std::move(events));
      else
        for (Event& event : events) tell_of(event);
      for (const auto& [_, inbox] : inboxes_)
        if (inbox->news > 0) told_.push_back(inbox);
      if (open_ == 0) all_ended_.notify_all();
    }
    for (const auto& inbox : told_) inbox->has_news.notify_all();  // who wakes finds the lock free
    told_.clear();
  }

  // What nobody has been told of before stays where it is.
  void keep(Inbox& inbox, std::vector<Event> events) {
    inbox.events = std::move(events);
    for (size_t place = 0; place < inbox.events.size(); ++place) {
      Known* const known = hear(inbox.events[place]);
      if (known == nullptr) {
        inbox.events[place] = {};
      } else if (known->place == kNowhere) {
        known->place = place;
        ++inbox.news;
      } else {
        inbox.events[known->place].add(std::exchange(inbox.events[place], {}));
      }
    }
  }

  void tell_of(Event& event) {
    Known* const known = hear(event);
    if (known == nullptr) return;
    Inbox& inbox = *known->inbox;
    if (known->place != kNowhere) return inbox.events[known->place].add(std::move(event));
    known->place = inbox.events.size();
    inbox.events.push_back(std::move(event));
    ++inbox.news;
  }

  // Whose event it is; null for one that was cancelled meanwhile, or whose step took too long.
  Known* hear(const Event& event) {
    const auto found = known_.find(event.request);
    if (found == known_.end() || found->second.has_ended) return nullptr;
    if (event.is_last()) {
      found->second.has_ended = true;
      --open_;
    }
    return &found->second;
  }

  Batch batch_;
  const uint64_t most_open_;
  const std::chrono::duration<double> most_step_;
  std::vector<Message> taken_;
  std::vector<std::shared_ptr<Inbox>> told_;
  std::chrono::duration<double> desk_took_{0};  // of the thread, but for waiting and steps

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable has_messages_, all_ended_;
  std::vector<Message> messages_;
  std::unordered_map<ReaderId, std::shared_ptr<Inbox>> inboxes_;
  // Requests that have not ended, or whose end nobody has polled.
  std::unordered_map<RequestId, Known> known_;
  uint64_t open_ = 0;  // how many of them have not ended
  RequestId latest_ = 0;
  BatchStats stats_;
  std::string failure_;
  bool is_draining_ = false, is_closed_ = false;
  bool is_stepping_ = false, is_hung_ = false;
  std::chrono::duration<double> stepping_{0};  // of this step, as far as somebody looked
  Clock::time_point looked_ = Clock::now();

  std::thread thread_;  // last: begins when all else is there
};

Engine::Engine(std::shared_ptr<StepRunner> runner, const EngineOptions& options)
    : process_(fork_depth()) {
  if (options.max_waiting < 0 || options.max_waiting > INT32_MAX) {
    throw Error(ErrorCode::kLimit, "max_waiting must be 0 to 2147483647");
  }
  if (!(options.most_step_seconds >= 0)) {
    throw Error(ErrorCode::kLimit, "most_step_seconds must be 0, which is for ever, or more");
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

RequestId Engine::submit(std::vector<int64_t> tokens, RequestOptions options, ReaderId reader) {
  return desk().submit(std::move(tokens), std::move(options), reader);
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

std::vector<Event> Engine::poll(double seconds, ReaderId reader) {
  return desk().poll(seconds, reader);
}

void Engine::leave(ReaderId reader) {
  desk().leave(reader);
}

BatchStats Engine::stats() const {
  return desk().stats();
}

std::string Engine::failure() const {
  return desk().failure();
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
