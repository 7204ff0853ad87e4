// Layer norm and RMS norm of rows of contiguous elements, shared by NPUSIM_LANES lanes, and read
// once where they fit into registers. The variance is of distances from the mean, corrected by what
// rounding moved it, so that a large mean costs no digits. y may be x's memory if dtypes and
// strides are equal.
#include "kernels/cuda/block.h"
#include "kernels/cuda/scalar_ops.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using W = Storage<params.w_dtype>;
using Y = Storage<params.y_dtype>;
using C = Compute<params.x_dtype>;
constexpr int kLanes = NPUSIM_LANES, kPack = NPUSIM_PACK;
using NormRow = Row<X, C, params.size, kLanes, kPack>;

// A row's result is (x - center) * scale + offset.
struct Affine {
  C center, scale, offset;
};

inline Affine rms_of(NormRow& row) {
  C squares = 0;
  row.for_each([&](int64_t, const C* v) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) squares += v[i] * v[i];
  });
  squares = fold_lanes<kLanes>(squares, Plus{});
  const C mean = squares / static_cast<C>(params.size);
  return {0, scalar::rsqrt(mean + static_cast<C>(params.eps)), 0};
}

inline Affine affine_of(NormRow& row) {
  constexpr C n = static_cast<C>(params.size);
  C sum = 0, gap = 0, squares = 0;
  row.for_each([&](int64_t, const C* v) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += v[i];
  });
  const C center = fold_lanes<kLanes>(sum, Plus{}) / n;
  row.for_each([&](int64_t, const C* v) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const C distance = v[i] - center;
      gap += distance;
      squares += distance * distance;
    }
  });
  gap = fold_lanes<kLanes>(gap, Plus{}) / n;
  const C variance = fold_lanes<kLanes>(squares, Plus{}) / n - gap * gap;
  const C scale = scalar::rsqrt((variance < 0 ? C{0} : variance) + static_cast<C>(params.eps));
  return {center, scale, -gap * scale};
}

// kPack elements of weight or bias.
inline void parameters(const W* p, C* numbers) {
  Pack<W, kPack> pack;
  constexpr bool fits = sizeof(W) * kPack <= 16;
  if (fits && is_packed<kPack>(p)) {
    if constexpr (fits) pack = load_pack<kPack>(p);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.at[i] = p[i];
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) numbers[i] = decode<C>(pack.at[i]);
}

inline void norm_row(const X* x, const W* weight, const W* bias, Y* y, int lane) {
  NormRow row(x, lane);
  const Affine a = params.kind == 1 ? rms_of(row) : affine_of(row);
  row.for_each([&](int64_t at, const C* v) {
    C results[kPack], more[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) results[i] = (v[i] - a.center) * a.scale + a.offset;
    if constexpr (params.has_weight) {
      parameters(weight + at, more);
#pragma unroll
      for (int i = 0; i < kPack; ++i) results[i] *= more[i];
    }
    if constexpr (params.has_bias) {
      parameters(bias + at, more);
#pragma unroll
      for (int i = 0; i < kPack; ++i) results[i] += more[i];
    }
    write_pack<kPack>(y + at, results);
  });
}

inline void norm(const void* x, const void* weight, const void* bias, void* y) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
  const int64_t row = thread / kLanes;
  if (row >= params.rows) return;
  norm_row(static_cast<const X*>(x) + row * params.x_row_stride, static_cast<const W*>(weight),
           static_cast<const W*>(bias), static_cast<Y*>(y) + row * params.y_row_stride,
           static_cast<int>(thread % kLanes));
}

}  // namespace npusim

#include "kernels/cuda/affine_entry.h"
