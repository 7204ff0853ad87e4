// Stacks that take turns on one thread. A fiber runs until it yields or its function returns; one
// that faulted is abandoned where it stood and its stack used again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softmetal {

class Fiber {
 public:
  static constexpr std::size_t kStackBytes = 128 * 1024;

  // `body` is called on the fiber's own stack, with `argument`, at the first resume().
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void begin(void (*body)(void*), void* argument);
  // Runs the fiber until it yields (true) or ends (false). `faulted()` says whether it was stopped.
  bool resume();
  // Whether an address lies in the pages below the stack, which nobody may touch.
  bool overflowed(std::uintptr_t address) const;

  static void yield();                 // by the fiber that runs
  static Fiber* running();             // on this thread; null: none
  [[noreturn]] static void abandon();  // by a fault handler, on any stack

 private:
  static void enter();

  unsigned char* mapping_;
  void* stack_pointer_ = nullptr;
  void* scheduler_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
};

}  // namespace softmetal
