// Inclusive scan along the middle of a dense [outer, size, inner]. NPUSIM_LANES is 1 where a thread
// scans a lane front to back, or the block's size where a block scans it in pieces: within warps,
// then over the warps, then over the pieces; or NPUSIM_PIECES blocks have a piece of a lane each,
// and begin with what those before come to. The order depends on the parameters alone. Floats
// accumulate in double. y may be x's memory if the dtypes are equal.
#include "kernels/cuda/common/scalar_ops.h"

namespace npusim {

enum Op : int32_t { kSum, kProd, kMax, kMin, kLogSumExp };

using X = Storage<params.x_dtype>;
using Y = Storage<params.y_dtype>;
constexpr bool kInteger = kSame<Compute<params.y_dtype>, int64_t>;
template <bool kWhole>
struct StateOf {
  using type = double;
};
template <>
struct StateOf<true> {
  using type = int64_t;
};
using C = typename StateOf<kInteger>::type;

inline double log_add_exp(double a, double b) {
  if (a != a || b != b) return a + b;
  const double low = a < b ? a : b, high = a < b ? b : a;
  // Equal infinities: their difference is not a number, the answer is.
  if (low == high && high - high != 0) return high;
  return high + ::log1p(::exp(low - high));
}

inline C combine(C a, C x) {
  if constexpr (params.op == kSum) return scalar::add(a, x);
  if constexpr (params.op == kProd) return scalar::mul(a, x);
  if constexpr (params.op == kMax) return scalar::maximum(a, x);
  if constexpr (params.op == kMin) return scalar::minimum(a, x);
  if constexpr (params.op == kLogSumExp && !kInteger) return log_add_exp(a, x);
  return a;
}

// What changes nothing it is combined with.
inline C neutral() {
  if constexpr (params.op == kSum) return 0;
  if constexpr (params.op == kProd) return 1;
  if constexpr (kInteger) return params.op == kMax ? kSmallest : kLargest;
  if constexpr (params.op == kMin) return kInfinity<C>;
  return -kInfinity<C>;
}

constexpr int kAhead = 8;  // elements that are loaded before the first of them is combined

inline void scan_lane(const X* x, Y* y) {
  C state = neutral();
  for (int64_t from = 0; from < params.size; from += kAhead) {
    X held[kAhead];
#pragma unroll
    for (int e = 0; e < kAhead; ++e) {
      if (from + e < params.size) held[e] = x[(from + e) * params.inner];
    }
#pragma unroll
    for (int e = 0; e < kAhead; ++e) {
      if (from + e >= params.size) break;
      const C element = decode<C>(held[e]);
      state = from + e == 0 ? element : combine(state, element);
      y[(from + e) * params.inner] = encode<Y>(state);
    }
  }
}

#if NPUSIM_LANES > 1
// Scans elements [first, last) of a lane behind `before`; returns what they come to with it. `y`
// null: nothing is stored.
inline C scan_together(const X* x, Y* y, int64_t first, int64_t last, C before) {
  constexpr int kWarps = NPUSIM_BLOCK / 32;
  __shared__ C totals[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (; first < last; first += NPUSIM_BLOCK) {
    const int64_t i = first + threadIdx.x;
    C value = i < last ? decode<C>(x[i * params.inner]) : neutral();
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const C left = __shfl_up_sync(0xffffffffU, value, step);
      if (lane >= step) value = combine(left, value);
    }
    if (lane == 31) totals[warp] = value;
    __syncthreads();
    C carry = before;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp && i < last && y != nullptr) {
        y[i * params.inner] = encode<Y>(combine(carry, value));
      }
      carry = combine(carry, totals[w]);
    }
    before = carry;
    __syncthreads();
  }
  return before;
}
#endif

// Where a lane begins.
inline int64_t start_of(int64_t lane) {
  return lane / params.inner * params.size * params.inner + lane % params.inner;
}

#if NPUSIM_PIECES > 1
// A block's piece of a lane.
struct Piece {
  int64_t lane, number, first, last;
};
inline Piece piece_of_block() {
  const int64_t number = blockIdx.x % NPUSIM_PIECES, first = number * NPUSIM_PIECE;
  const int64_t last = first + NPUSIM_PIECE;
  return {blockIdx.x / NPUSIM_PIECES, number, first, last < params.size ? last : params.size};
}

// What the pieces of a lane before this one come to.
inline C total_before(const C* totals, int64_t pieces) {
  __shared__ C sums[NPUSIM_BLOCK];
  C sum = neutral();
  for (int64_t i = threadIdx.x; i < pieces; i += NPUSIM_BLOCK) sum = combine(sum, totals[i]);
  sums[threadIdx.x] = sum;
  for (int width = NPUSIM_BLOCK / 2; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) {
      sums[threadIdx.x] = combine(sums[threadIdx.x], sums[threadIdx.x + width]);
    }
  }
  __syncthreads();
  return sums[0];
}
#endif

}  // namespace npusim

#if NPUSIM_PIECES == 1
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(const void* x, void* y) {
  using namespace npusim;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
  const int64_t lane = thread / NPUSIM_LANES;
  if (lane >= params.outer * params.inner) return;
  const X* from = static_cast<const X*>(x) + start_of(lane);
  Y* to = static_cast<Y*>(y) + start_of(lane);
#if NPUSIM_LANES > 1
  scan_together(from, to, 0, params.size, neutral());
#else
  scan_lane(from, to);
#endif
}
#else
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, void*, void* scratch) {
  using namespace npusim;
  const Piece piece = piece_of_block();
  const X* from = static_cast<const X*>(x) + start_of(piece.lane);
  const C total = scan_together(from, nullptr, piece.first, piece.last, neutral());
  if (threadIdx.x == 0) static_cast<C*>(scratch)[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_scan(const void* x, void* y, void* scratch) {
  using namespace npusim;
  const Piece piece = piece_of_block();
  const C* totals = static_cast<const C*>(scratch) + piece.lane * NPUSIM_PIECES;
  const C before = total_before(totals, piece.number);
  scan_together(static_cast<const X*>(x) + start_of(piece.lane),
                static_cast<Y*>(y) + start_of(piece.lane), piece.first, piece.last, before);
}
#endif
