// Faults of a kernel's thread become a report instead of the process's end: bad addresses, division
// of integers by zero, and more time than allowed. Faults elsewhere go to whoever handled them.
#pragma once

#include <cstdint>

namespace softmetal {

struct Fault {
  int signal = 0;  // 0: none
  std::uintptr_t address = 0;
};

// Installs the handlers, once a process, and the alternate stack of the calling thread.
void watch_faults();
// What stopped the fiber that the calling thread ran last; forgets it.
Fault take_fault();

// While it lives, a fiber of the calling thread that runs longer is stopped: its fault is the
// timer's signal.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
};

}  // namespace softmetal
