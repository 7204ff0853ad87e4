// A row of kSize contiguous elements of X, shared by kLanes threads in packs of kPack, which
// divides kSize. A short row is read once and stays in registers as numbers.
#pragma once
#include "kernels/metal/common/threads.h"

namespace npusim {

template <typename X, int64_t kSize, int kLanes, int kPack>
struct Row {
  static constexpr int64_t kRounds = (kSize / kPack + kLanes - 1) / kLanes;
  static constexpr bool kHeld = kRounds * kPack <= 32;

  device const X* x;
  int lane;
  float held[kHeld ? kRounds * kPack : 1];

  Row(device const X* row, int own) : x(row), lane(own) {
    if (!kHeld) return;
#pragma unroll
    for (int64_t r = 0; r < kRounds; ++r) {
      if (exists(r)) read(r, held + (kHeld ? r * kPack : 0));
    }
  }
  // Where the pack of a round begins, and whether there is one.
  int64_t position(int64_t round) const { return (round * kLanes + lane) * kPack; }
  bool exists(int64_t round) const { return position(round) < kSize; }
  void numbers(int64_t round, thread float* out) const {
    if (!kHeld) return read(round, out);
#pragma unroll
    for (int i = 0; i < kPack; ++i) out[i] = held[kHeld ? round * kPack + i : 0];
  }
  void read(int64_t round, thread float* out) const {
    const Pack<X, kPack> pack = load_pack<kPack>(x + position(round));
#pragma unroll
    for (int i = 0; i < kPack; ++i) out[i] = decode<float>(pack.at[i]);
  }
};

// Stores kPack numbers at y.
template <int kPack, typename Y>
inline void write_pack(device Y* y, thread const float* numbers) {
  Pack<Y, kPack> pack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) pack.at[i] = encode<Y>(numbers[i]);
  store_pack(y, pack);
}

}  // namespace npusim
