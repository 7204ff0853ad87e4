// The state of one session: the memory of a program's kState buffers on a device, zero at first.
//
// A program has no state of its own; an executor binds the one that a run is given. States are
// independent: what a run does to one leaves all others as they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"

namespace npusim {

class State {
 public:
  // Throws Error(kDevice) when the device has not that much memory, and as admit.
  State(std::shared_ptr<const Program> program, std::shared_ptr<Device> device);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // A state of its own with the same content.
  std::shared_ptr<State> copy() const;

  // Part of a kState buffer as it is now, or to be from now on; not while a run uses the state.
  // Throws Error(kInput) for another kind of buffer, or bytes outside it. Of several ranks, of
  // which each may have another part of a state, nothing is read, and what is written is whole.
  void read(uint32_t buffer, int64_t offset, std::span<std::byte> to) const;
  void write(uint32_t buffer, int64_t offset, std::span<const std::byte> from);
  // Takes over part of a buffer of another state of the same program and device.
  void copy_from(const State& other, uint32_t buffer, int64_t offset, int64_t bytes);

  // Where a kState buffer lives on the device. Throws Error(kInput) for another kind of buffer.
  MemoryRange range(uint32_t buffer) const;
  // Tells this state from all others of the process.
  uint64_t serial() const noexcept { return serial_; }
  // Throws Error(kInput) for a program of several ranks, whose states nobody has as a whole.
  void require_one_rank() const;
  const std::shared_ptr<const Program>& program() const noexcept { return program_; }
  const std::shared_ptr<Device>& device() const noexcept { return device_; }

 private:
  // Where the range starts in the arena.
  int64_t place(uint32_t buffer, int64_t offset, int64_t bytes) const;

  std::shared_ptr<const Program> program_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Memory> memory_;
  uint64_t serial_;
};

}  // namespace npusim
