// Layer norm and RMS norm of rows of contiguous elements, shared by NPUSIM_LANES lanes, and read
// once where they fit into registers. The variance is of distances from the mean, corrected by what
// rounding moved it, so that a large mean costs no digits. y may be x's memory if dtypes and
// strides are equal.
#include "kernels/cuda/common/block.h"
#include "kernels/cuda/common/scalar_ops.h"
#include "kernels/cuda/rows/norm_operands.h"

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

// Weight or bias.
class Vector {
 public:
  // Where nothing writes it, this lane's part of it is read at once, and stays in registers.
  static constexpr bool kHeld =
      NormRow::kHeld && NPUSIM_VECTORS > 0 &&
      (unwritten_operands >> 1 & ((1 << NPUSIM_VECTORS) - 1)) == (1 << NPUSIM_VECTORS) - 1;

  Vector(const void* from, int lane) : from_(static_cast<const W*>(from)) {
    if constexpr (kHeld) {
#pragma unroll
      for (int r = 0; r < NormRow::kRounds; ++r) {
        const int64_t at = (static_cast<int64_t>(r) * kLanes + lane) * kPack;
        if (from_ != nullptr && at < params.size) held_[r] = read(at);
      }
    }
  }
  // The numbers from `at` on, those of this lane's round.
  void numbers(int64_t round, int64_t at, C* out) const {
    const Pack<W, kPack> pack = kHeld ? held_[kHeld ? round : 0] : read(at);
#pragma unroll
    for (int i = 0; i < kPack; ++i) out[i] = decode<C>(pack.at[i]);
  }

 private:
  Pack<W, kPack> read(int64_t at) const {
    constexpr bool fits = sizeof(W) * kPack <= 16;
    if constexpr (fits) {
      if (is_packed<kPack>(from_ + at)) return load_pack<kPack>(from_ + at);
    }
    Pack<W, kPack> pack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.at[i] = from_[at + i];
    return pack;
  }

  const W* from_;
  Pack<W, kPack> held_[kHeld ? NormRow::kRounds : 1];
};

// Loads weight and bias early where nothing writes them before in the method.
class Norm {
 public:
  Norm(const void* weight, const void* bias)
      : thread_(static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x),
        weight_(params.has_weight ? weight : nullptr, lane()),
        bias_(params.has_bias ? bias : nullptr, lane()) {}

  void run(const void* x_memory, void* y_memory) const {
    const int64_t index = thread_ / kLanes;
    if (index >= params.rows) return;
    NormRow row(static_cast<const X*>(x_memory) + index * params.x_row_stride, lane());
    Y* y = static_cast<Y*>(y_memory) + index * params.y_row_stride;
    const Affine a = params.kind == 1 ? rms_of(row) : affine_of(row);
    row.for_each_round([&](int64_t round, int64_t at, const C* v) {
      C results[kPack], more[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) results[i] = (v[i] - a.center) * a.scale + a.offset;
      if constexpr (params.has_weight) {
        weight_.numbers(round, at, more);
#pragma unroll
        for (int i = 0; i < kPack; ++i) results[i] *= more[i];
      }
      if constexpr (params.has_bias) {
        bias_.numbers(round, at, more);
#pragma unroll
        for (int i = 0; i < kPack; ++i) results[i] += more[i];
      }
      write_pack<kPack>(y + at, results);
    });
  }

 private:
  int lane() const { return static_cast<int>(thread_ % kLanes); }

  int64_t thread_;
  Vector weight_, bias_;
};

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_TENSORS) {
  npusim::launch_dependents();
  const npusim::Norm norm(NPUSIM_VECTORS_GIVEN);
  npusim::wait_on_dependencies();
  norm.run(x, y);
}
