#include "cpp/cuda/staging.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

namespace npusim::cuda {
namespace {

constexpr size_t kChunk = size_t{2} << 20;
constexpr size_t kMostLanes = 6;
constexpr size_t kChunksPerLane = 2;  // of a copy, before another lane is worth its thread

// Bytes of a chunk that an upload takes, so that the next one lies aligned.
size_t room_of(const Upload& upload) {
  constexpr size_t kGranule = 64;
  return (upload.from.size() + kGranule - 1) / kGranule * kGranule;
}

// The system is asked once: its answer takes longer than a small copy.
size_t lanes_of_machine() {
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMostLanes);
}

}  // namespace

// One copy, shared by the lanes that work on it.
struct Staging::Copy {
  DeviceAddress device;
  std::byte* host;  // read only when `up`
  size_t bytes;
  bool up;
  std::atomic<size_t> next{0};  // the chunk that nobody has taken yet
  std::atomic<Result> failed{kSuccess};

  size_t chunks() const { return (bytes + kChunk - 1) / kChunk; }
  size_t size(size_t chunk) const { return std::min(kChunk, bytes - chunk * kChunk); }
  std::byte* host_at(size_t chunk) const { return host + chunk * kChunk; }
  DeviceAddress device_at(size_t chunk) const { return device + chunk * kChunk; }
  bool take(size_t& chunk) {
    chunk = next.fetch_add(1);
    return chunk < chunks() && failed.load() == kSuccess;
  }
  bool holds(Result result) {
    if (result != kSuccess) failed.store(result);
    return result == kSuccess;
  }
};

// Two pinned chunks, and what tells when the device is done with each.
class Staging::Lane {
 public:
  explicit Lane(const std::shared_ptr<const Context>& context)
      : context_(*context), memory_(context, 2 * kChunk) {
    const Driver& driver = context_.driver();
    for (EventHandle& event : events_) {
      driver.check(driver.event_create(&event, kEventWithoutTiming), "make an event");
    }
  }
  ~Lane() {
    for (EventHandle event : events_) {
      if (event != nullptr) context_.driver().event_destroy(event);
    }
  }

  // Bytes that fit into a chunk together.
  Result send_all(std::span<const Upload> uploads) {
    const Driver& driver = context_.driver();
    Result result = driver.event_synchronize(events_[next_]);
    std::byte* at = slot(next_);
    for (const Upload& each : uploads) {
      if (result != kSuccess) return result;
      if (each.from.empty()) continue;
      std::memcpy(at, each.from.data(), each.from.size());
      result = driver.copy_to_device(each.to.offset, at, each.from.size(), context_.stream());
      at += room_of(each);
    }
    if (result == kSuccess) result = driver.event_record(events_[next_], context_.stream());
    next_ ^= 1;
    return result;
  }

  void work(Copy& copy) {
    const Current current(context_);
    if (copy.up) {
      send(copy);
    } else {
      receive(copy);
    }
  }

 private:
  std::byte* slot(size_t index) const { return memory_.data() + index * kChunk; }

  void send(Copy& copy) {
    const Driver& driver = context_.driver();
    for (size_t chunk; copy.take(chunk); next_ ^= 1) {
      if (!copy.holds(driver.event_synchronize(events_[next_]))) return;
      std::memcpy(slot(next_), copy.host_at(chunk), copy.size(chunk));
      const bool queued = copy.holds(driver.copy_to_device(copy.device_at(chunk), slot(next_),
                                                           copy.size(chunk), context_.stream())) &&
                          copy.holds(driver.event_record(events_[next_], context_.stream()));
      if (!queued) return;
    }
  }

  // Takes a chunk out of its slot while the next one is on its way to the other.
  void receive(Copy& copy) {
    const Driver& driver = context_.driver();
    size_t waiting = 0;
    bool waits = false;
    const auto empty = [&] {
      if (!waits || !copy.holds(driver.event_synchronize(events_[next_ ^ 1]))) return;
      std::memcpy(copy.host_at(waiting), slot(next_ ^ 1), copy.size(waiting));
    };
    for (size_t chunk; copy.take(chunk); next_ ^= 1) {
      const bool queued = copy.holds(driver.copy_to_host(slot(next_), copy.device_at(chunk),
                                                         copy.size(chunk), context_.stream())) &&
                          copy.holds(driver.event_record(events_[next_], context_.stream()));
      if (!queued) return;
      empty();
      waiting = chunk;
      waits = true;
    }
    empty();
  }

  const Context& context_;
  PinnedMemory memory_;
  EventHandle events_[2] = {};
  size_t next_ = 0;  // the slot whose last use lies further back
};

Staging::Staging(std::shared_ptr<const Context> context)
    : context_(std::move(context)), most_lanes_(lanes_of_machine()) {}

Staging::~Staging() {
  const Current current(*context_);
  lanes_.clear();
}

void Staging::upload(DeviceAddress to, std::span<const std::byte> from) {
  if (from.empty()) return;
  Copy copy{
      .device = to, .host = const_cast<std::byte*>(from.data()), .bytes = from.size(), .up = true};
  run(copy);
}

void Staging::download(std::span<std::byte> to, DeviceAddress from) {
  if (to.empty()) return;
  Copy copy{.device = from, .host = to.data(), .bytes = to.size(), .up = false};
  run(copy);
}

void Staging::upload_all(std::span<const Upload> uploads) {
  for (size_t first = 0; first < uploads.size();) {
    size_t end = first, bytes = 0;
    while (end < uploads.size() && bytes + room_of(uploads[end]) <= kChunk) {
      bytes += room_of(uploads[end++]);
    }
    if (end == first) {  // larger than a chunk by itself
      upload(uploads[first].to.offset, uploads[first].from);
      ++end;
    } else if (bytes > 0) {
      upload_together(uploads.subspan(first, end - first));
    }
    first = end;
  }
}

void Staging::upload_together(std::span<const Upload> uploads) {
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  const Current current(*context_);
  context_->driver().check(lane(0).send_all(uploads), "copy to the device");
}

// Opens lanes up to that one. The context must be current.
Staging::Lane& Staging::lane(size_t index) {
  while (lanes_.size() <= index) lanes_.push_back(std::make_unique<Lane>(context_));
  return *lanes_[index];
}

void Staging::run(Copy& copy) {
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  const size_t wanted = std::clamp<size_t>(copy.chunks() / kChunksPerLane, 1, most_lanes_);
  const Current current(*context_);
  lane(wanted - 1);
  std::vector<std::thread> threads;
  threads.reserve(wanted);
  try {
    for (size_t i = 1; i < wanted; ++i) {
      threads.emplace_back([&copy, lane = lanes_[i].get()] { lane->work(copy); });
    }
  } catch (const std::system_error&) {
    // The system gives no more threads: those there are copy everything.
  }
  lanes_[0]->work(copy);
  for (std::thread& thread : threads) thread.join();
  const char* what = copy.up ? "copy to the device" : "copy from the device";
  context_->driver().check(copy.failed.load(), what);
}

}  // namespace npusim::cuda
