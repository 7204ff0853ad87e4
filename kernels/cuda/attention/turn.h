// Rotary position embedding of pairs of elements, with the same bits wherever they are turned.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

// a' = a cos - b sin of an element and its partner, and b' = b cos + a sin, with the angles at
// their own places. Rounded twice: left to themselves, compilers join one product or the other.
inline float turned_first(float a, float b, float cos, float sin) {
  return fmaf(a, cos, -(b * sin));
}
inline float turned_second(float a, float b, float cos, float sin) {
  return fmaf(b, cos, a * sin);
}

// Cosines and sines of eight pairs: those of the first elements, then those of the second.
template <typename C>
struct Angles {
  static constexpr int kEach = sizeof(C) / 2;  // chunks of 16 bytes
  uint4 cos[2][kEach], sin[2][kEach];

  Angles() = default;
  Angles(const C* cosines, const C* sines, int half) {
#pragma unroll
    for (int i = 0; i < 2 * kEach; ++i) {
      const int at = i / kEach * half + i % kEach * (8 / kEach);
      cos[i / kEach][i % kEach] = load_kept(cosines + at);
      sin[i / kEach][i % kEach] = load_kept(sines + at);
    }
  }
  static void unpack_eight(const uint4 (&chunks)[kEach], float (&v)[8]) {
    if constexpr (kEach == 1) {
      unpack<C>(chunks[0], v);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[i * 4] = __uint_as_float(chunks[i].x);
        v[i * 4 + 1] = __uint_as_float(chunks[i].y);
        v[i * 4 + 2] = __uint_as_float(chunks[i].z);
        v[i * 4 + 3] = __uint_as_float(chunks[i].w);
      }
    }
  }
};

// Eight pairs, whose elements are 16 bytes each.
template <typename T>
struct TurnedEight {
  uint4 first, second;

  template <typename C>
  TurnedEight(const uint4& low, const uint4& high, const Angles<C>& angles) {
    float a[8], b[8], c[8], s[8], turned[8];
    unpack<T>(low, a);
    unpack<T>(high, b);
    const auto packed = [&] {
      return uint4{pack_pair<T>(turned[0], turned[1]), pack_pair<T>(turned[2], turned[3]),
                   pack_pair<T>(turned[4], turned[5]), pack_pair<T>(turned[6], turned[7])};
    };
    Angles<C>::unpack_eight(angles.cos[0], c);
    Angles<C>::unpack_eight(angles.sin[0], s);
#pragma unroll
    for (int e = 0; e < 8; ++e) turned[e] = turned_first(a[e], b[e], c[e], s[e]);
    first = packed();
    Angles<C>::unpack_eight(angles.cos[1], c);
    Angles<C>::unpack_eight(angles.sin[1], s);
#pragma unroll
    for (int e = 0; e < 8; ++e) turned[e] = turned_second(a[e], b[e], c[e], s[e]);
    second = packed();
  }
};

}  // namespace npusim
