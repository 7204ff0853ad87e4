// softmax and log_softmax along the middle of a dense [outer, size, inner]. Rows (inner 1) are
// shared by NPUSIM_LANES lanes, and read once where they fit into registers; with inner > 1
// NPUSIM_PARTS threads of a block share a column, and neighbours have neighbouring columns. Of a
// few long columns, or rows, blocks have NPUSIM_SPLIT slices, and a second launch writes with what
// all found. A row of -inf alone is NaN, as in PyTorch. y may be x's memory if the dtypes are
// equal.
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

// A block's columns, or its slice of them. Threads of columns beyond the last only keep step.
struct Slice {
  int64_t column, number, at;  // `at`: of the column in x
  int64_t first, end;          // elements of a thread, kParts apart

  explicit Slice(int64_t block)
      : column(block / NPUSIM_SPLIT * kColumns + threadIdx.x % kColumns),
        number(block % NPUSIM_SPLIT),
        at(column / params.inner * params.size * params.inner + column % params.inner) {
    constexpr int64_t each = (params.size + NPUSIM_SPLIT - 1) / NPUSIM_SPLIT;
    const int64_t behind = (number + 1) * each;
    first = number * each + threadIdx.x / kColumns;
    end = exists() ? (behind < params.size ? behind : params.size) : 0;
  }
  bool exists() const { return column < params.outer * params.inner; }

  Statistics statistics(const X* x) const {
    Statistics s{-kInfinity<C>, 0};
#pragma unroll 4
    for (int64_t i = first; i < end; i += kParts)
      s.max = Larger{}(s.max, decode<C>(x[at + i * params.inner]));
    s.max = fold_parts(s.max, Larger{});
#pragma unroll 4
    for (int64_t i = first; i < end; i += kParts)
      s.sum += scalar::exp(decode<C>(x[at + i * params.inner]) - s.max);
    s.sum = fold_parts(s.sum, Plus{});
    return s;
  }
  void write(const X* x, Y* y, const Statistics& s) const {
    const C scale = scale_of(s);
#pragma unroll 4
    for (int64_t i = first; i < end; i += kParts) {
      const int64_t place = at + i * params.inner;
      y[place] = encode<Y>(result(decode<C>(x[place]), s, scale));
    }
  }
  // Of the whole column, from those of its slices; one of -inf alone adds nothing.
  Statistics together(const Statistics* slices) const {
    const int part = static_cast<int>(threadIdx.x) / kColumns;
    const Statistics* own = slices + (exists() ? column : 0) * NPUSIM_SPLIT;
    Statistics s{-kInfinity<C>, 0};
    for (int i = part; i < NPUSIM_SPLIT; i += kParts) s.max = Larger{}(s.max, own[i].max);
    s.max = fold_parts(s.max, Larger{});
    for (int i = part; i < NPUSIM_SPLIT; i += kParts) {
      if (own[i].max != -kInfinity<C>) s.sum += own[i].sum * scalar::exp(own[i].max - s.max);
    }
    s.sum = fold_parts(s.sum, Plus{});
    return s;
  }
};

}  // namespace npusim

#if NPUSIM_SPLIT == 1
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
    const Slice slice(blockIdx.x);
    slice.write(from, to, slice.statistics(from));
  }
}
#else
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void*, void* scratch) {
  using namespace npusim;
  const Slice slice(blockIdx.x);
  const Statistics found = slice.statistics(static_cast<const X*>(x));
  if (slice.exists() && threadIdx.x < kColumns) {
    static_cast<Statistics*>(scratch)[slice.column * NPUSIM_SPLIT + slice.number] = found;
  }
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_write(const void* x, void* y, void* scratch) {
  using namespace npusim;
  const Slice slice(blockIdx.x);
  const Statistics s = slice.together(static_cast<const Statistics*>(scratch));
  slice.write(static_cast<const X*>(x), static_cast<Y*>(y), s);
}
#endif
