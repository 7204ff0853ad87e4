// Runs one threadgroup: a fiber a thread, which meet at barriers and SIMD operations. Between two
// meeting points a thread runs alone, in the order of the settings; so a missing barrier shows as a
// result that changes with the order.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/abi.h"
#include "engine/faults.h"
#include "engine/fiber.h"
#include "engine/memory.h"
#include "engine/settings.h"

namespace softmetal {

// What compiled libraries call; one for all, as one threadgroup runs at a time.
Engine& engine();

// Why work failed: an MTLCommandBufferError, and a sentence. Code 0: it did not.
struct Failure {
  int code = 0;
  std::string message;
  explicit operator bool() const { return code != 0; }
};

struct ThreadgroupShape {
  unsigned position[3], groups[3], grid[3];  // of the threadgroup, of the grid in both units
  unsigned size[3], full_size[3];            // threads, at the edge and elsewhere
};

class Threadgroup {
 public:
  Threadgroup();

  ThreadgroupMemory& memory() { return memory_; }
  // Prepares threads that see these arguments; `variables` counts the first places of memory().
  void set_arguments(void* const* buffers, const std::vector<int>& threadgroup_buffers,
                     std::size_t variables);
  // The failure's message leaves out the kernel's name, which the caller knows.
  Failure run(const Kernel& kernel, const ThreadgroupShape& shape, Order order,
              std::mt19937_64& random);
  const Thread& faulted() const { return threads_[current_]; }
  const Fault& fault() const { return fault_; }
  bool memory_near(std::uintptr_t address) const { return memory_.near(address); }

 private:
  enum class State { kReady, kAtBarrier, kInSimdgroup, kDone };
  struct Progress {
    State state;
    Site site;
  };
  struct Simdgroup {
    unsigned char slots[2][kSimdWidth * kSlotBytes];
    unsigned lanes[2];  // who took part
    unsigned phase, waiting, live;
  };

  static void threadgroup_barrier(Site site);
  static void simdgroup_barrier(Site site);
  static Meeting meet(Site site, const void* value, unsigned bytes);
  static void body(void* self);

  void place_threads(const ThreadgroupShape& shape);
  void wait(State state, Site site);
  Failure step(unsigned thread);
  Failure advance(std::size_t first, std::size_t end, bool again, bool* moved);
  void release_simdgroup(unsigned index);
  void release_all();
  Failure stuck() const;
  Failure stopped();
  std::string name(unsigned thread) const;
  std::string doing(unsigned thread) const;

  const Kernel* kernel_ = nullptr;
  ThreadgroupMemory memory_;
  std::vector<Thread> threads_;
  std::vector<Progress> progress_;
  std::vector<Simdgroup> simdgroups_;
  std::vector<unsigned> order_;
  std::vector<std::unique_ptr<Fiber>> idle_, busy_;
  unsigned count_ = 0, current_ = 0, done_ = 0, at_barrier_ = 0;
  bool released_ = false;  // at a barrier of all threads
  void* const* buffers_ = nullptr;
  std::vector<void*> variables_, threadgroup_buffers_;
  Fault fault_;
};

}  // namespace softmetal
