// Rotary position embedding of the queries and keys of rows of many requests, and the append of
// keys and values to the pages that their tables name. A block has a row. A thread turns a pair of
// elements, or eight neighbouring pairs (NPUSIM_EACH), or moves twice as many elements of a value.
#include "kernels/cuda/attention/paged_destination.h"
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

constexpr int kThreads = NPUSIM_BLOCK;
constexpr int kEach = NPUSIM_EACH;
constexpr bool kEights = kEach == 8;
using T = Storage<params.dtype>;
using C = Storage<params.cs_dtype>;
enum Operands { kQ, kK, kValue, kCos, kSin, kTables, kY = 8, kKeys, kValues, kFailure };

constexpr int kD = static_cast<int>(params.head_dim), kV = static_cast<int>(params.v_dim);
constexpr int kTurned = static_cast<int>(params.rotary_dim), kHalf = kTurned / 2;
constexpr int kPairs = (kD + 1) / 2 / kEach, kValuePairs = (kV + 1) / 2 / kEach;  // of a head

// Turns a pair of a head, or moves two neighbours beyond those that turn.
inline void turn_pair(const T* x, T* y, const C* cos, const C* sin, int pair) {
  if (pair >= kHalf) {
    const int at = 2 * pair;
    y[at] = x[at];
    if (at + 1 < kD) y[at + 1] = x[at + 1];
    return;
  }
  const int at = params.interleaved ? 2 * pair : pair;
  const int other = params.interleaved ? at + 1 : pair + kHalf;
  const float a = to_float(x[at]), b = to_float(x[other]);
  const float first = a * to_float(cos[at]) - b * to_float(sin[at]);
  const float second = b * to_float(cos[other]) + a * to_float(sin[other]);
  y[at] = encode<T>(first);
  y[other] = encode<T>(second);
}

// Eight pairs from `pair` on of a head that turns as a whole; chunks lie on 16 bytes.
inline void turn_eight(const T* x, T* y, const C* cos, const C* sin, int pair) {
  float a[8], b[8], c[8], s[8], turned[8];
  load_floats<8>(x + pair, a);
  load_floats<8>(x + pair + kHalf, b);
  const auto packed = [&] {
    return uint4{pack_pair<T>(turned[0], turned[1]), pack_pair<T>(turned[2], turned[3]),
                 pack_pair<T>(turned[4], turned[5]), pack_pair<T>(turned[6], turned[7])};
  };
  load_floats<8>(cos + pair, c);
  load_floats<8>(sin + pair, s);
#pragma unroll
  for (int e = 0; e < 8; ++e) turned[e] = a[e] * c[e] - b[e] * s[e];
  *reinterpret_cast<uint4*>(y + pair) = packed();
  load_floats<8>(cos + pair + kHalf, c);
  load_floats<8>(sin + pair + kHalf, s);
#pragma unroll
  for (int e = 0; e < 8; ++e) turned[e] = b[e] * c[e] + a[e] * s[e];
  *reinterpret_cast<uint4*>(y + pair + kHalf) = packed();
}

inline void turn(const T* x, T* y, const C* cos, const C* sin, int unit, bool wide) {
  if constexpr (kEights) {
    if (wide) return turn_eight(x, y, cos, sin, unit * 8);
  }
#pragma unroll 1
  for (int e = 0; e < kEach; ++e) turn_pair(x, y, cos, sin, unit * kEach + e);
}

inline void move(const T* x, T* y, int unit, bool wide) {
  const int at = unit * 2 * kEach;
  if constexpr (kEights) {
    if (wide) {
      const uint4 low = load_kept(x + at), high = load_kept(x + at + 8);
      *reinterpret_cast<uint4*>(y + at) = low;
      *reinterpret_cast<uint4*>(y + at + 8) = high;
      return;
    }
  }
#pragma unroll 1
  for (int e = at; e < at + 2 * kEach && e < kV; ++e) y[e] = x[e];
}

inline void run(void* const* operands) {
  const PagedTables<kTables> tables(operands, kFailure);
  const int64_t row = blockIdx.x;
  const auto tensor = [&](int i) { return static_cast<T*>(operands[i]); };
  const T* q = tensor(kQ) + row * params.q_strides[1];
  const T* k = tensor(kK) + row * params.k_strides[1];
  const T* v = tensor(kValue) + row * params.v_strides[1];
  const C* cos = static_cast<const C*>(operands[kCos]) + row * params.cs_strides[0];
  const C* sin = static_cast<const C*>(operands[kSin]) + row * params.cs_strides[1];
  T* y = tensor(kY) + row * params.y_strides[1];
  const PagedDestination to = kept_destination<kThreads>(tables, row);
  T* keys = tensor(kKeys) + to.page * params.k_pool_strides[0] + to.row * params.k_pool_strides[2];
  T* values =
      tensor(kValues) + to.page * params.v_pool_strides[0] + to.row * params.v_pool_strides[2];
  const bool wide = is_aligned(q, 16) && is_aligned(k, 16) && is_aligned(v, 16) &&
                    is_aligned(y, 16) && is_aligned(cos, 16) && is_aligned(sin, 16) &&
                    is_aligned(operands[kKeys], 16) && is_aligned(operands[kValues], 16);
  constexpr int kOfQueries = static_cast<int>(params.heads) * kPairs;
  constexpr int kOfKeys = static_cast<int>(params.kv_heads) * kPairs;
  constexpr int kOfValues = static_cast<int>(params.kv_heads) * kValuePairs;
  const int count = to.page < 0 ? kOfQueries : kOfQueries + kOfKeys + kOfValues;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    if (i < kOfQueries) {
      const int64_t head = i / kPairs;
      turn(q + head * params.q_strides[0], y + head * params.y_strides[0], cos, sin, i % kPairs,
           wide);
    } else if (i < kOfQueries + kOfKeys) {
      const int64_t head = (i - kOfQueries) / kPairs;
      turn(k + head * params.k_strides[0], keys + head * params.k_pool_strides[1], cos, sin,
           (i - kOfQueries) % kPairs, wide);
    } else {
      const int unit = i - kOfQueries - kOfKeys;
      const int64_t head = unit / kValuePairs;
      move(v + head * params.v_strides[0], values + head * params.v_pool_strides[1],
           unit % kValuePairs, wide);
    }
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}
