// How long each command of a method takes on the device: its work captured as one graph with an
// event after every command, so that what the host does between two launches is not measured.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cpp/cuda/context.h"

namespace npusim::cuda {

class CommandTimer {
 public:
  // `launch(index)` puts a command's work on the context's stream, with its arguments of now. The
  // context must be current. Throws Error(kDevice), and what `launch` throws.
  CommandTimer(std::shared_ptr<const Context> context, size_t commands,
               const std::function<void(size_t)>& launch);
  ~CommandTimer();
  CommandTimer(const CommandTimer&) = delete;
  CommandTimer& operator=(const CommandTimer&) = delete;

  // Runs the commands, waits, and writes how long each took, in seconds. An event itself takes the
  // device about a microsecond, which is part of the number.
  void run(std::span<double> seconds);

 private:
  void make_events(size_t count);
  void capture(const std::function<void(size_t)>& launch);
  void release() noexcept;

  std::shared_ptr<const Context> context_;
  std::vector<EventHandle> events_;  // one before the commands, one after each
  GraphHandle graph_ = nullptr;
  GraphExecHandle executable_ = nullptr;
};

}  // namespace npusim::cuda
