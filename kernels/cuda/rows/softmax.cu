// softmax and log_softmax along the middle of a dense [outer, size, inner]. Rows (inner 1) are
// shared by NPUSIM_LANES lanes, and read once where they fit into registers; with inner > 1 a
// thread takes a column. A row of -inf alone is NaN, as in PyTorch. y may be x's memory if the
// dtypes are equal.
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/scalar_ops.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using Y = Storage<params.y_dtype>;
using C = Compute<params.x_dtype>;
constexpr int kLanes = NPUSIM_LANES, kPack = NPUSIM_PACK;

// The largest element and the sum of the exponentials of all others' distances from it.
struct Statistics {
  C max, sum;
};

inline C result(C x, const Statistics& s, C scale) {
  return params.log ? (x - s.max) - scale : scalar::exp(x - s.max) * scale;
}
inline C scale_of(const Statistics& s) {
  return params.log ? scalar::log(s.sum) : C{1} / s.sum;
}

inline void softmax_row(const X* x, Y* y, int lane) {
  Row<X, C, params.size, kLanes, kPack> row(x, lane);
  Statistics s{-kInfinity<C>, 0};
  row.for_each([&](int64_t, const C* v) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) s.max = Larger{}(s.max, v[i]);
  });
  s.max = fold_lanes<kLanes>(s.max, Larger{});
  row.for_each([&](int64_t, const C* v) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) s.sum += scalar::exp(v[i] - s.max);
  });
  s.sum = fold_lanes<kLanes>(s.sum, Plus{});
  const C scale = scale_of(s);
  row.for_each([&](int64_t at, const C* v) {
    C results[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) results[i] = result(v[i], s, scale);
    write_pack<kPack>(y + at, results);
  });
}

inline void softmax_column(const X* x, Y* y) {
  Statistics s{-kInfinity<C>, 0};
  for (int64_t i = 0; i < params.size; ++i) s.max = Larger{}(s.max, decode<C>(x[i * params.inner]));
  for (int64_t i = 0; i < params.size; ++i)
    s.sum += scalar::exp(decode<C>(x[i * params.inner]) - s.max);
  const C scale = scale_of(s);
  for (int64_t i = 0; i < params.size; ++i)
    y[i * params.inner] = encode<Y>(result(decode<C>(x[i * params.inner]), s, scale));
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(const void* x, void* y) {
  using namespace npusim;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
  const auto* from = static_cast<const X*>(x);
  auto* to = static_cast<Y*>(y);
  if constexpr (params.inner == 1) {
    const int64_t row = thread / kLanes;
    if (row >= params.outer) return;
    softmax_row(from + row * params.size, to + row * params.size, thread % kLanes);
  } else {
    if (thread >= params.outer * params.inner) return;
    const int64_t at = thread / params.inner * params.size * params.inner + thread % params.inner;
    softmax_column(from + at, to + at);
  }
}
