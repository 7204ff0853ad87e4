// The proof that the operands of a command do not share memory in a way that its kernel cannot
// take.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel.h"

namespace npusim::cpu {

// What a command touches of one operand, and where.
struct PlacedWalk {
  uint32_t space;   // memories that can overlap have the same number
  int64_t address;  // of the operand, in bytes from the start of its space
  int64_t before;   // bytes that lie before it in its buffer
  int64_t after;    // bytes from it to the end of its buffer
  OperandWalk walk;
};

// True when no byte belongs to both. Exact for walks whose dimensions nest, as those of slices of
// one tensor do; false where it finds no proof.
bool are_disjoint(const PlacedWalk& a, const PlacedWalk& b);

// True when both visit the same elements, of the same size, in the same places of their shapes.
bool are_the_same(const PlacedWalk& a, const PlacedWalk& b);

}  // namespace npusim::cpu
