// One dispatch of a kernel with what was bound when it was encoded, and running those that no
// barrier parts: one after another, backwards, or with their threadgroups in any order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/library.h"
#include "engine/memory.h"
#include "engine/threadgroup.h"

namespace softmetal {

constexpr unsigned kBufferCount = 31;

// A kernel with its constants: what a pipeline state stands for.
struct Pipeline {
  std::shared_ptr<const LoadedLibrary> library;
  const Kernel* kernel = nullptr;
  std::vector<unsigned char> constants;  // as Library::constant_values
  unsigned max_threads = 1024;
  bool indirect = false;  // may stand in indirect command buffers

  // Bytes of the threadgroup variables that the kernel declares.
  std::size_t threadgroup_bytes() const;
  std::string key() const;  // for binary archives
};

// A buffer and an offset, or bytes of the command's own.
struct Bound {
  std::shared_ptr<Allocation> memory;
  std::size_t offset = 0;
  explicit operator bool() const { return memory != nullptr; }
};

using Size3 = std::array<std::size_t, 3>;

struct Dispatch {
  std::shared_ptr<const Pipeline> pipeline;
  std::array<Bound, kBufferCount> buffers;
  std::array<std::size_t, kBufferCount> threadgroup_lengths = {};
  Size3 grid = {}, group = {};  // threads
  Bound indirect_groups;        // three uint32: the grid in threadgroups, read when it runs
  bool needs_owners = false;    // of buffers: nobody retains them
};

// What the host did wrong in a dispatch; empty: nothing.
std::string check_dispatch(const Dispatch& dispatch);

// Runs what no barrier parts. One caller at a time.
Failure run_dispatches(const std::vector<Dispatch>& dispatches);

}  // namespace softmetal
