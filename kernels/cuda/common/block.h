// What threads do together: folds over the lanes that share a row, in a fixed order, and the row's
// elements as packs in registers. Lanes are a warp of a block, a part of one, or a whole block.
#pragma once
#include "kernels/cuda/common/scalar.h"
#include "kernels/shared/folds.h"

namespace npusim {

// Folds x over so many neighbouring lanes, a power of two up to 32; all of them get the result.
template <int kLanes = 32, typename T, typename F>
inline T fold_warp(T x, F f) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    x = f(x, __shfl_xor_sync(0xffffffffU, x, step));
  }
  return x;
}

// Folds x over kLanes lanes: a warp or less, or the whole block of as many threads.
template <int kLanes, typename T, typename F>
inline T fold_lanes(T x, F f) {
  x = fold_warp<(kLanes < 32 ? kLanes : 32)>(x, f);
  if constexpr (kLanes <= 32) {
    return x;
  } else {
    constexpr int kWarps = kLanes / 32;
    __shared__ T warps[kWarps];
    __syncthreads();  // what an earlier fold left has been read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = warps[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) x = f(x, warps[w]);
    return x;
  }
}

// A row of kSize contiguous elements of X, shared by kLanes lanes in packs of kPack; kPack divides
// kSize. A short row is read once and stays in registers as numbers of class C.
template <typename X, typename C, int64_t kSize, int kLanes, int kPack>
class Row {
 public:
  static constexpr int64_t kPacks = kSize / kPack;
  static constexpr int64_t kRounds = (kPacks + kLanes - 1) / kLanes;
  static constexpr bool kHeld = kRounds * kPack * sizeof(C) <= 32 * sizeof(float);

  Row(const X* x, int lane) : x_(x), lane_(lane), packed_(is_packed<kPack>(x)) {
    if constexpr (kHeld) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        if (is_inside(r)) read(r, held_ + r * kPack);
      }
    }
  }

  // Calls f(position of the first, numbers) for every pack of this lane; f may change the numbers
  // where the row is held.
  template <typename F>
  void for_each(F f) {
    for_each_round([&](int64_t, int64_t at, C* numbers) { f(at, numbers); });
  }
  // The same with the number of the pack among this lane's, a constant where the row is held.
  template <typename F>
  void for_each_round(F f) {
    if constexpr (kHeld) {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) {
        if (is_inside(r)) f(r, position(r), held_ + r * kPack);
      }
    } else {
      for (int64_t r = 0; r < kRounds; ++r) {
        C numbers[kPack];
        if (!is_inside(r)) break;
        read(r, numbers);
        f(r, position(r), numbers);
      }
    }
  }

 private:
  int64_t position(int64_t r) const { return (r * kLanes + lane_) * kPack; }
  bool is_inside(int64_t r) const { return r * kLanes + lane_ < kPacks; }

  void read(int64_t r, C* numbers) const {
    Pack<X, kPack> pack;
    const X* x = x_ + position(r);
    if (packed_) {
      pack = load_pack<kPack>(x);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) pack.at[i] = x[i];
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) numbers[i] = decode<C>(pack.at[i]);
  }

  const X* x_;
  const int lane_;
  const bool packed_;
  C held_[kHeld ? kRounds * kPack : 1];
};

// Stores kPack numbers at y.
template <int kPack, typename Y, typename C>
inline void write_pack(Y* y, const C* numbers) {
  Pack<Y, kPack> pack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) pack.at[i] = encode<Y>(numbers[i]);
  if (is_packed<kPack>(y)) {
    store_pack(y, pack);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = pack.at[i];
  }
}

}  // namespace npusim
