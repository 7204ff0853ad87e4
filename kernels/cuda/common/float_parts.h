// Products of float32 numbers on the tensor cores, as exact as multiply-adds are.
//
// A number is the sum of three of bfloat16, each the nearest to what those before it leave (8
// significant bits each, float32's 24 together). Six of the nine products of two such sums are
// added up, the smallest first; the three that are left out are below 2^-25 of the whole product,
// half of what rounding it to float32 may cost. The tensor cores cut sums off where additions
// round, so they sum 16 products at most, and additions do the rest: Ootomo and Yokota, "Recovering
// single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance" (2022), who split numbers in two. Henry, Tang and Heinecke, "Leveraging the
// bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations" (2019), have three.
// Infinities and what is beyond bfloat16's range have no such parts: sums that are not finite
// are to be added up again, one product after another. Parts below bfloat16's least number are
// lost.
#pragma once
#include "kernels/cuda/common/mma.h"

namespace npusim {

constexpr int kFloatParts = 3;

// The nearest bfloat16 of two numbers in one instruction, the first in the low half.
inline unsigned bfloat16_pair(float first, float second) {
#ifdef __CUDA_ARCH__
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return pack_pair<bfloat16>(first, second);
#endif
}

// The parts of two numbers, in pairs, the first number's in the low halves.
inline void split_pair(float first, float second, unsigned (&parts)[kFloatParts]) {
#pragma unroll
  for (int p = 0; p < kFloatParts; ++p) {
    parts[p] = bfloat16_pair(first, second);
    first -= __uint_as_float(parts[p] << 16);
    second -= __uint_as_float(parts[p] & 0xffff0000u);
  }
}

// Four elements of a row from `k` on, of which those before `end` exist. wide: all or none do, and
// lie on 16 bytes.
template <typename T>
void load_four(const T* row, int64_t k, int64_t end, bool wide, float (&v)[4]) {
  if (wide) {
    if (k < end) return load_floats<4>(row + k, v);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = 0.0f;
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) v[e] = k + e < end ? to_float(row[k + e]) : 0.0f;
}

// Parts of a and of b that are multiplied, the smallest products first.
constexpr int kPartProducts[6][2] = {{2, 0}, {1, 1}, {0, 2}, {1, 0}, {0, 1}, {0, 0}};

// The products of 16 rows of a and kBlocks times 8 columns of b, summed over 16 of K.
template <int kBlocks>
void multiply_parts(const unsigned (&a)[kFloatParts][4],
                    const unsigned (&b)[kFloatParts][kBlocks / 2][4],
                    float (&products)[kBlocks][4]) {
#pragma unroll
  for (int i = 0; i < kBlocks * 4; ++i) products[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (const auto& [pa, pb] : kPartProducts) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
      mma_16x8x16<bfloat16>(products[j], a[pa][0], a[pa][1], a[pa][2], a[pa][3],
                            b[pb][j / 2][j % 2 * 2], b[pb][j / 2][j % 2 * 2 + 1]);
    }
  }
}

inline bool is_finite(float x) {
  return fabsf(x) <= 3.402823466e+38f;
}

}  // namespace npusim
