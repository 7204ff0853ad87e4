// What follows the sum of one output in a product of few rows.
#pragma once
#include "kernels/cuda/matmul/epilogue.h"
#include "kernels/cuda/matmul/linear_params.h"

namespace npusim {

// One output of a lane: what is added to its sum, asked for long before the sum is there.
struct PendingOutput {
  int64_t m, column;
  bool exists;
  float bias[kParts] = {}, residual = 0.0f;

  PendingOutput(int64_t m, int64_t column, bool exists)
      : m(m), column(column), exists(exists && column < params.n) {}
  void read_bias(const Epilogue& epilogue) {
    if (!exists) return;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      bias[part] = epilogue.bias_at(column + part * params.n);
    }
  }
  void read_residual(const Epilogue& epilogue) {
    if (exists) residual = epilogue.residual_at(m * params.ldr + column);
  }
  void store(const Epilogue& epilogue, const float (&v)[kParts]) const {
    if (!exists) return;
    float y;
    if constexpr (kParts == 2) {
      y = Epilogue::finished_gated(v[0], v[kParts - 1], bias[0], bias[kParts - 1]);
    } else {
      y = Epilogue::finished(v[0], bias[0], residual);
    }
    epilogue.store(m * params.ldy + column, y);
  }
};

}  // namespace npusim
