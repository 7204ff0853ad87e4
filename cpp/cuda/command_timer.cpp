#include "cpp/cuda/command_timer.h"

namespace npusim::cuda {

CommandTimer::CommandTimer(std::shared_ptr<const Context> context, size_t commands,
                           const std::function<void(size_t)>& launch)
    : context_(std::move(context)) {
  try {
    make_events(commands + 1);
    capture(launch);
    const Driver& driver = context_->driver();
    driver.check(driver.graph_instantiate(&executable_, graph_, 0),
                 "make a graph that times the method's commands");
  } catch (...) {
    release();
    throw;
  }
}

CommandTimer::~CommandTimer() {
  const Current current(*context_);
  release();
}

void CommandTimer::make_events(size_t count) {
  const Driver& driver = context_->driver();
  for (size_t i = 0; i < count; ++i) {
    EventHandle event = nullptr;
    driver.check(driver.event_create(&event, 0), "make an event");
    events_.push_back(event);
  }
}

void CommandTimer::capture(const std::function<void(size_t)>& launch) {
  const Driver& driver = context_->driver();
  const StreamHandle stream = context_->stream();
  const auto mark = [&](EventHandle event) {
    driver.check(driver.event_record_with_flags(event, stream, kEventExternal), "record an event");
  };
  driver.check(driver.stream_begin_capture(stream, kCaptureRelaxed), "capture a method");
  try {
    mark(events_[0]);
    for (size_t i = 0; i + 1 < events_.size(); ++i) {
      launch(i);
      mark(events_[i + 1]);
    }
  } catch (...) {
    driver.stream_end_capture(stream, &graph_);  // leaves the stream as it was
    throw;
  }
  driver.check(driver.stream_end_capture(stream, &graph_), "capture a method");
}

void CommandTimer::run(std::span<double> seconds) {
  const Driver& driver = context_->driver();
  driver.check(driver.graph_launch(executable_, context_->stream()), "start the method's graph");
  context_->synchronize();
  for (size_t i = 0; i < seconds.size(); ++i) {
    float milliseconds = 0;
    driver.check(driver.event_elapsed_time(&milliseconds, events_[i], events_[i + 1]),
                 "tell the time between two events");
    seconds[i] = 1e-3 * static_cast<double>(milliseconds);
  }
}

void CommandTimer::release() noexcept {
  const Driver& driver = context_->driver();
  if (executable_ != nullptr) driver.graph_exec_destroy(executable_);
  if (graph_ != nullptr) driver.graph_destroy(graph_);
  for (EventHandle event : events_) driver.event_destroy(event);
}

}  // namespace npusim::cuda
