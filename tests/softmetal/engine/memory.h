// Memory of a buffer between pages that nobody may touch. It ends where the pages begin, but for
// what the alignment leaves over; that holds a pattern, which check() compares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace softmetal {

class Allocation {
 public:
  static constexpr std::size_t kGuardBytes = 1 << 20;

  // Zeroed. Throws std::bad_alloc.
  Allocation(std::size_t bytes, std::size_t alignment);
  // The host's memory, without guards; `done` is called with it at the end.
  Allocation(void* host, std::size_t bytes);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  unsigned char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Whole pages of the host's, who may write what else lies in them at any time.
  bool is_of_host() const { return mapping_ == nullptr; }
  // Whether an address lies here or within the guards; `byte` is its distance from the beginning.
  bool near(std::uintptr_t address, std::int64_t* byte) const;
  // Says which byte outside the memory was written; empty: none.
  std::string check() const;

  std::string label;      // for messages
  bool released = false;  // its MTLBuffer is gone

 private:
  unsigned char* mapping_ = nullptr;
  std::size_t mapped_ = 0, usable_ = 0;
  unsigned char* data_;
  std::size_t bytes_;
};

// Threadgroup memory: poisoned for every threadgroup, with gaps between the variables.
class ThreadgroupMemory {
 public:
  ThreadgroupMemory();

  void clear() { size_ = 0; }
  // Reserves `bytes`, and returns the place in the list of addresses.
  void reserve(std::size_t bytes, std::size_t alignment);
  void* address(std::size_t index) const;
  std::size_t count() const { return size_; }
  void poison();
  // Which reservation was overrun; -1: none.
  int damaged() const;
  bool near(std::uintptr_t address) const;

 private:
  static constexpr std::size_t kMost = 64, kGap = 16, kCapacity = 256 * 1024;

  std::size_t total() const;

  unsigned char* mapping_;
  std::size_t size_ = 0;
  std::size_t offsets_[kMost] = {}, bytes_[kMost] = {};
};

}  // namespace softmetal
