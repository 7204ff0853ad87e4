// What a unit of a recurrence becomes of its sums and its last state (ops/recurrent_step.py).
#pragma once
#include "kernels/cuda/common/fast_math.h"

namespace npusim {

enum Cells { kPlain, kGru, kLstm };  // params.cell
constexpr int kGates = params.cell == kPlain ? 1 : params.cell == kGru ? 3 : 4;

constexpr bool kExact = sizeof(Storage<params.dtype>) > 2;

inline float gate_of(float x) {
  return kExact ? scalar::sigmoid(x) : fast_sigmoid(x);
}
inline float squashed(float x) {
  return kExact ? scalar::tanh(x) : fast_tanh(x);
}

struct Updated {
  float y, cell;  // a cell of LSTMs alone
};

// s: sums of x·Wᵀ + bias, a: what is added to them, both by gate; before: a GRU's rows, an LSTM's
// cell.
inline Updated update(const float (&s)[kGates], const float (&a)[kGates], float before) {
  if constexpr (params.cell == kPlain) {
    return {scalar::activate<params.act>(s[0] + a[0]), 0.0f};
  } else if constexpr (params.cell == kGru) {
    const float candidate = squashed(a[2] + gate_of(s[0] + a[0]) * s[2]);
    return {(before - candidate) * gate_of(s[1] + a[1]) + candidate, 0.0f};
  } else {
    const float cell = gate_of(s[1] + a[1]) * before + gate_of(s[0] + a[0]) * squashed(s[2] + a[2]);
    return {gate_of(s[3] + a[3]) * squashed(cell), cell};
  }
}

}  // namespace npusim
