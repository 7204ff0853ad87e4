// What follows the sums of a product: bias, residual, activation, storage.
#pragma once
#include "kernels/cuda/common/fast_math.h"
#include "kernels/cuda/common/mma.h"

namespace npusim {

// Eight values as 16 bytes.
template <typename Y>
uint4 pack_eight(const float (&v)[8]) {
  return {pack_pair<Y>(v[0], v[1]), pack_pair<Y>(v[2], v[3]), pack_pair<Y>(v[4], v[5]),
          pack_pair<Y>(v[6], v[7])};
}

// x * Phi(x) by way of the tail of the normal distribution, Phi(-|x|), so that nothing cancels
// where x is negative. The polynomial is log2(2 Phi(-a)) / a, fitted on (0, 6.5] so that a tail is
// within 5e-6 of its size; beyond, it falls as fast, and tails are below what 16 bits hold beside
// one.
inline float fast_gelu(float x) {
  const float a = fabsf(x);
  float p = -1.7603244941710727e-06f;
  p = p * a + 6.000200301059522e-05f;
  p = p * a - 0.0009170442936010659f;
  p = p * a + 0.008451073430478573f;
  p = p * a - 0.05383552983403206f;
  p = p * a - 0.45859789848327637f;
  p = p * a - 1.1511940956115723f;
  const float tail = fast_exp2(p * a - 1.0f);
  return x * (x > 0.0f ? 1.0f - tail : tail);
}
// x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3).
inline float fast_gelu_tanh(float x) {
  return x * fast_sigmoid(1.5957691216057308f * x * (1.0f + 0.044715f * x * x));
}

// The command's activation of a number that is stored as Y: of 16 bits, which do not show how near
// an exponential is.
template <typename Y>
float activated(float v) {
  using enum abi::Opcode;
  constexpr auto op = static_cast<abi::Opcode>(params.act);
  if constexpr (sizeof(Y) != 2) {
    return scalar::activate<params.act>(v, params.act_lo, params.act_hi);
  } else if constexpr (op == kSilu) {
    return v * fast_sigmoid(v);
  } else if constexpr (op == kSigmoid) {
    return fast_sigmoid(v);
  } else if constexpr (op == kGelu) {
    return fast_gelu(v);
  } else if constexpr (op == kGeluTanh) {
    return fast_gelu_tanh(v);
  } else {
    return scalar::activate<params.act>(v, params.act_lo, params.act_hi);
  }
}

// bias, residual and y of a command whose operands before them are x and `weights` parts of W.
// Rows of y and of the residual lie where the kernel says; columns are contiguous. A convolution's
// bias may be followed by factors of the sums and offsets of y, `vector` floats apart.
struct Epilogue {
  using Y = Storage<params.y_dtype>;
  using R = Storage<params.residual ? params.r_dtype : 0>;
  static constexpr bool kHasFactors = params.has_bias > 1, kHasOffsets = params.has_bias > 2;
  const float* bias;
  const R* residual;
  Y* y;
  int64_t vector;

  Epilogue(void* const* operands, int weights, int64_t vector = 0) : vector(vector) {
    void* const* at = operands + 1 + weights;
    bias = static_cast<const float*>(at[0]);
    residual = static_cast<const R*>(at[params.has_bias ? 1 : 0]);
    y = static_cast<Y*>(at[(params.has_bias ? 1 : 0) + (params.residual ? 1 : 0)]);
  }

  float bias_at(int64_t column) const {
    if constexpr (params.has_bias != 0) return bias[column];
    return 0.0f;
  }
  float residual_at(int64_t at) const {
    if constexpr (params.residual != 0) return to_float(residual[at]);
    return 0.0f;
  }

  // What y is of a sum, given what is added to it.
  static float finished(float v, float bias, float residual) {
    if constexpr (params.has_bias != 0) v += bias;
    if constexpr (params.residual == 1) v += residual;
    v = activated<Y>(v);
    if constexpr (params.residual == 2) v += residual;
    return v;
  }
  // act(first + bias) * (second + its bias).
  static float finished_gated(float first, float second, float bias, float second_bias) {
    if constexpr (params.has_bias != 0) {
      first += bias;
      second += second_bias;
    }
    return activated<Y>(first) * second;
  }
  float finish(float v, int64_t r_row, int64_t column) const {
    if constexpr (kHasFactors) v *= bias[vector + column];
    v = finished(v, bias_at(column), residual_at(r_row + column));
    if constexpr (kHasOffsets) v += bias[2 * vector + column];
    return v;
  }
  // The columns of `second` follow those of `first`.
  float finish_gated(float first, float second, int64_t column, int64_t n) const {
    return finished_gated(first, second, bias_at(column), bias_at(n + column));
  }

  // One value, and two beside each other of which the second may lie outside.
  void store(int64_t at, float v) const { y[at] = encode<Y>(v); }
  void store_pair(int64_t at, float first, float second, bool both) const {
    if constexpr (sizeof(Y) == 2) {
      if (both && is_aligned(y + at, 4)) {
        *reinterpret_cast<unsigned*>(y + at) = pack_pair<Y>(first, second);
        return;
      }
    }
    store(at, first);
    if (both) store(at + 1, second);
  }
};

// Of four values of each of the four lanes that share a row, gives lane t every lane's t-th.
inline void transpose_quad(float (&v)[4]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      float& low = v[i];
      float& high = v[i | step];
      const float received = __shfl_xor_sync(0xffffffffu, t & step ? low : high, step);
      if (t & step) {
        low = received;
      } else {
        high = received;
      }
    }
  }
}

// The sums of a tile (mma_tile.h) of eight columns beside each other, of the lane's `row`th row:
// its block of columns among the four of a quad. False: there is no such block.
template <typename BlockTile>
bool eight_columns(const BlockTile& tile, int quad, int row, float (&sums)[8]) {
  float even[4] = {}, odd[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (quad * 4 + j >= BlockTile::kBlocksN) continue;
    even[j] = tile.sums[row / 2][quad * 4 + j][row % 2 * 2];
    odd[j] = tile.sums[row / 2][quad * 4 + j][row % 2 * 2 + 1];
  }
  transpose_quad(even);
  transpose_quad(odd);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    sums[2 * j] = even[j];
    sums[2 * j + 1] = odd[j];
  }
  return quad * 4 + static_cast<int>(threadIdx.x % 4) < BlockTile::kBlocksN;
}

// The epilogue of eight columns beside each other, of which `count` exist. Where 16-bit ones lie on
// 16 bytes, `wide`, they move as one.
struct VectorEpilogue {
  static constexpr bool kPacked =
      sizeof(Epilogue::Y) == 2 && (params.residual == 0 || sizeof(Epilogue::R) == 2);
  static constexpr int kVectors = Epilogue::kHasOffsets ? 3 : Epilogue::kHasFactors ? 2 : 1;
  Epilogue epilogue;
  bool wide;

  explicit VectorEpilogue(const Epilogue& from)
      : epilogue(from),
        wide(kPacked && is_aligned(from.y, 16) && (!params.has_bias || is_aligned(from.bias, 16)) &&
             (!Epilogue::kHasFactors || from.vector % 4 == 0) &&
             (!params.residual || is_aligned(from.residual, 16))) {}

  // The residual at `at`, to be loaded long before it is needed.
  uint4 residual(int64_t at, int count) const {
    if constexpr (params.residual != 0 && kPacked) {
      if (count <= 0) return {0, 0, 0, 0};
      if (wide && count >= 8) return *reinterpret_cast<const uint4*>(epilogue.residual + at);
      return gather_chunk(epilogue.residual + at, count);
    }
    return {0, 0, 0, 0};
  }
  void bias(int64_t column, int count, float (&b)[8]) const {
    if constexpr (params.has_bias != 0) {
      if (wide && count >= 8) {
        load_floats<8>(epilogue.bias + column, b);
        return;
      }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) b[e] = params.has_bias && e < count ? epilogue.bias[column + e] : 0;
  }
  // What y is of eight sums. `b` has the bias, then factors and offsets where there are any.
  void results(int64_t r_at, int count, const uint4& loaded, const float (&b)[8 * kVectors],
               const float (&sums)[8], float (&v)[8]) const {
    float r[8] = {};
    if constexpr (params.residual != 0 && kPacked) unpack<Epilogue::R>(loaded, r);
    if constexpr (params.residual != 0 && !kPacked) {
#pragma unroll
      for (int e = 0; e < 8; ++e) r[e] = e < count ? to_float(epilogue.residual[r_at + e]) : 0;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      v[e] = sums[e];
      if constexpr (Epilogue::kHasFactors) v[e] *= b[8 + e];
      v[e] += b[e];
      if constexpr (params.residual == 1) v[e] += r[e];
      v[e] = activated<Epilogue::Y>(v[e]);
      if constexpr (params.residual == 2) v[e] += r[e];
      if constexpr (Epilogue::kHasOffsets) v[e] += b[16 + e];
    }
  }
  void store(int64_t y_at, int count, const float (&v)[8]) const {
    if constexpr (sizeof(Epilogue::Y) == 2) {
      if (wide && count >= 8) {
        *reinterpret_cast<uint4*>(epilogue.y + y_at) = pack_eight<Epilogue::Y>(v);
        return;
      }
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (e < count) epilogue.store(y_at + e, v[e]);
    }
  }
  void finish(int64_t y_at, int64_t r_at, int count, const uint4& loaded,
              const float (&b)[8 * kVectors], const float (&sums)[8]) const {
    float v[8];
    results(r_at, count, loaded, b, sums, v);
    store(y_at, count, v);
  }
};

}  // namespace npusim
