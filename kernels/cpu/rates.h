// What a processor reaches at best by an instruction set: loops that do nothing else.
#pragma once

#include <cstdint>

namespace npusim::cpu {

// Of each, a call computes so many rounds and returns a number that depends on all of them.
struct RateLoop {
  const char* dtype;   // of the factors: "float32"
  int64_t operations;  // of a round; a multiplication with an addition is two
  float (*run)(int64_t rounds);
};

struct RateLoops {
  RateLoop compute[3];
  // Adds up numbers in the order in which they lie, as many loads under way as registers take.
  float (*read)(const float* from, int64_t count);
};

}  // namespace npusim::cpu
