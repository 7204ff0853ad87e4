// softmax and log_softmax along the middle of a dense [outer, size, inner]. Rows (inner 1) are
// shared by NPUSIM_LANES lanes, and read once where they fit into registers; with inner > 1
// NPUSIM_PARTS threads of a block share a column, and neighbours have neighbouring columns. A row
// of -inf alone is NaN, as in PyTorch. y may be x's memory if the dtypes are equal.
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/scalar_ops.h"

namespace npusim {

using X = Storage<params.x_dtype>;
using Y = Storage<params.y_dtype>;
using C = Compute<params.x_dtype>;
constexpr int kLanes = NPUSIM_LANES, kPack = NPUSIM_PACK;
constexpr int kParts = NPUSIM_PARTS, kColumns = NPUSIM_BLOCK / kParts;

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

// Folds what the threads of a column hold, in a tree; all of them get the result.
template <typename F>
inline C fold_parts(C x, F f) {
  if constexpr (kParts == 1) return x;
  __shared__ C room[NPUSIM_BLOCK];
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // what an earlier fold left has been read
  room[thread] = x;
  for (int width = kParts / 2; width > 0; width /= 2) {
    __syncthreads();
    if (thread < width * kColumns) room[thread] = f(room[thread], room[thread + width * kColumns]);
  }
  __syncthreads();
  return room[thread % kColumns];
}

// Threads of columns beyond the last only keep step.
inline void softmax_column(const X* x, Y* y, bool exists) {
  const int64_t first = exists ? threadIdx.x / kColumns : params.size;
  Statistics s{-kInfinity<C>, 0};
#pragma unroll 4
  for (int64_t i = first; i < params.size; i += kParts)
    s.max = Larger{}(s.max, decode<C>(x[i * params.inner]));
  s.max = fold_parts(s.max, Larger{});
#pragma unroll 4
  for (int64_t i = first; i < params.size; i += kParts)
    s.sum += scalar::exp(decode<C>(x[i * params.inner]) - s.max);
  s.sum = fold_parts(s.sum, Plus{});
  const C scale = scale_of(s);
#pragma unroll 4
  for (int64_t i = first; i < params.size; i += kParts)
    y[i * params.inner] = encode<Y>(result(decode<C>(x[i * params.inner]), s, scale));
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(const void* x, void* y) {
  using namespace npusim;
  const auto* from = static_cast<const X*>(x);
  auto* to = static_cast<Y*>(y);
  if constexpr (params.inner == 1) {
    const int64_t thread = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
    const int64_t row = thread / kLanes;
    if (row >= params.outer) return;
    softmax_row(from + row * params.size, to + row * params.size, thread % kLanes);
  } else {
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
    const int64_t at = column / params.inner * params.size * params.inner + column % params.inner;
    softmax_column(from + at, to + at, column < params.outer * params.inner);
  }
}
