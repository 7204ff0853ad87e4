// Sums and extremes of contiguous runs. Owns their accuracy: floats are added in whole vectors, in
// blocks short enough that rounding stays far below one part in 10^6, and the blocks' sums are
// added in double.
#pragma once

#include <utility>

#include "kernels/cpu/math.h"

namespace npusim::cpu::NPUSIM_ISA {

// As many numbers of class C as a register of this instruction set holds.
template <typename C>
struct Pack {
  static constexpr int size = static_cast<int>(sizeof(Vec) / sizeof(C));
  using type = typename VectorOf<C, size>::type;
  using unaligned = typename VectorOf<C, size>::unaligned;
};
template <typename C>
inline typename Pack<C>::type load_pack(const C* p) {
  return *reinterpret_cast<const typename Pack<C>::unaligned*>(p);
}

// What run sums add up in: double for reals; int64 wraps.
template <typename C>
struct TotalOf {
  using type = double;
};
template <>
struct TotalOf<int64_t> {
  using type = uint64_t;
};

template <typename C, typename V>
inline typename TotalOf<C>::type sum_lanes(V v) {
  typename TotalOf<C>::type total{};
  for (int i = 0; i < Pack<C>::size; ++i) total += static_cast<typename TotalOf<C>::type>(v[i]);
  return total;
}

// Sum of f(x[i]) for i in [0, n); f maps a pack to a pack.
template <typename C, typename F>
inline typename TotalOf<C>::type accumulate(const C* x, int64_t n, F f) {
  using V = typename Pack<C>::type;
  constexpr int64_t size = Pack<C>::size, kBlock = 64 * size;
  typename TotalOf<C>::type total{};
  int64_t i = 0;
  while (i + size <= n) {
    const int64_t end = n - i < kBlock ? i + (n - i) / size * size : i + kBlock;
    V sums[4] = {};
    for (; i + 4 * size <= end; i += 4 * size) {
      sums[0] += f(load_pack(x + i));
      sums[1] += f(load_pack(x + i + size));
      sums[2] += f(load_pack(x + i + 2 * size));
      sums[3] += f(load_pack(x + i + 3 * size));
    }
    for (; i < end; i += size) sums[0] += f(load_pack(x + i));
    total += sum_lanes<C>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
  if (i < n) {
    V rest{};
    std::memcpy(&rest, x + i, static_cast<size_t>(n - i) * sizeof(C));
    rest = f(rest);
    for (int64_t j = 0; i + j < n; ++j)
      total += static_cast<typename TotalOf<C>::type>(rest[static_cast<int>(j)]);
  }
  return total;
}

// Sums of the distances of x[0 … n) from `center`, and of their squares. The first says how far
// the center is from the mean: rounding one in float, or finding it, costs no accuracy.
struct Distances {
  double sum = 0, squares = 0;
};
template <typename C>
inline Distances accumulate_distances(const C* x, int64_t n, C center) {
  using V = typename Pack<C>::type;
  constexpr int64_t size = Pack<C>::size, kBlock = 64 * size;
  Distances total;
  int64_t i = 0;
  while (i + size <= n) {
    const int64_t end = n - i < kBlock ? i + (n - i) / size * size : i + kBlock;
    V sums[2] = {}, squares[2] = {};
    const auto add = [&](int k, V v) {
      const V d = v - center;
      sums[k] += d;
      squares[k] += d * d;
    };
    for (; i + 2 * size <= end; i += 2 * size) {
      add(0, load_pack(x + i));
      add(1, load_pack(x + i + size));
    }
    for (; i < end; i += size) add(0, load_pack(x + i));
    total.sum += sum_lanes<C>(sums[0] + sums[1]);
    total.squares += sum_lanes<C>(squares[0] + squares[1]);
  }
  for (; i < n; ++i) {
    const double d = static_cast<double>(x[i] - center);
    total.sum += d;
    total.squares += d * d;
  }
  return total;
}

// Lane by lane, the larger (kSign 1) or smaller (-1); NaN wins. Works on packs and on numbers.
template <int kSign, typename V>
inline V extreme(V a, V b) {
  if constexpr (kSign > 0) {
    return ((a > b) | (a != a)) ? a : b;
  } else {
    return ((a < b) | (a != a)) ? a : b;
  }
}

// Every lane of the result is the extreme of all lanes of v: of pairs S apart first.
template <int kSign, int S, typename V, int... I>
inline V extreme_lanes(V v, std::integer_sequence<int, I...> lanes) {
#if defined(__clang__)
  const V other = __builtin_shufflevector(v, v, (I ^ S)...);
#else
  const V other = __builtin_shuffle(v, decltype(v == v){(I ^ S)...});
#endif
  v = extreme<kSign>(v, other);
  if constexpr (S == 1) {
    return v;
  } else {
    return extreme_lanes<kSign, S / 2>(v, lanes);
  }
}

// The extreme of x[0 … n), n > 0.
template <int kSign, typename C>
inline C extreme_of(const C* x, int64_t n) {
  using V = typename Pack<C>::type;
  constexpr int64_t size = Pack<C>::size;
  if (n < size) {
    C best = x[0];
    for (int64_t i = 1; i < n; ++i) best = extreme<kSign>(best, x[i]);
    return best;
  }
  V first = load_pack(x), second = first;
  int64_t i = 0;
  for (; i + 2 * size <= n; i += 2 * size) {
    first = extreme<kSign>(first, load_pack(x + i));
    second = extreme<kSign>(second, load_pack(x + i + size));
  }
  if (i + size <= n) first = extreme<kSign>(first, load_pack(x + i));
  // The last pack may overlap what was seen: an extreme does not mind.
  first = extreme<kSign>(extreme<kSign>(first, second), load_pack(x + n - size));
  return extreme_lanes<kSign, size / 2>(first, std::make_integer_sequence<int, size>{})[0];
}

}  // namespace npusim::cpu::NPUSIM_ISA
