// A square of vectors, transposed or summed in registers: log2(kLanes) rounds of exchanges, each
// swapping the off-diagonal blocks of twice the size of the round before.
#pragma once

#include <utility>

#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {

// Lane i is lane I_i of a and b laid end to end.
template <int... I>
inline Vec shuffle(Vec a, Vec b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, I...);
#else
  return __builtin_shuffle(a, b, IVec{I...});
#endif
}

// Lane i is lane index[i] of v.
inline Vec pick(Vec v, IVec index) {
#if defined(__clang__)
  Vec out{};
  for (int i = 0; i < kLanes; ++i) out[i] = v[index[i]];
  return out;
#else
  return __builtin_shuffle(v, index);
#endif
}

template <int S, int... I>
inline void exchange(Vec& a, Vec& b, std::integer_sequence<int, I...>) {
  using Low = std::integer_sequence<int, (I & S ? kLanes + I - S : I)...>;
  using High = std::integer_sequence<int, (I & S ? kLanes + I : I + S)...>;
  const Vec low = shuffle(a, b, Low{});
  b = shuffle(a, b, High{});
  a = low;
}

template <int S = 1>
inline void transpose(Vec (&rows)[kLanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (!(i & S)) exchange<S>(rows[i], rows[i + S], std::make_integer_sequence<int, kLanes>{});
  }
  if constexpr (2 * S < kLanes) transpose<2 * S>(rows);
}

// The rounds from S on of summing each of kLanes vectors: of the N that are left here, half are
// left after each round. After all of them lane i is the sum of the lanes of vector i.
template <int S, int N>
inline Vec sum_rounds(Vec (&rows)[N]) {
  if constexpr (N == 1) {
    return rows[0];
  } else {
    Vec half[N / 2];
#pragma GCC unroll 16
    for (int i = 0; i < N; i += 2) {
      exchange<S>(rows[i], rows[i + 1], std::make_integer_sequence<int, kLanes>{});
      half[i / 2] = rows[i] + rows[i + 1];
    }
    return sum_rounds<2 * S>(half);
  }
}
// Lane i of the result is the sum of the lanes of rows[i].
inline Vec sum_each(Vec (&rows)[kLanes]) {
  return sum_rounds<1>(rows);
}

}  // namespace npusim::cpu::NPUSIM_ISA
