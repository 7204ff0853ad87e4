// y = the sum of all ranks' x in the order of the ranks, rounded; plus the residual, if there is
// one, rounded again. NPUSIM_WAY says how x gets around (exchange.h has the words):
// 0: in lines: a thread sends eight bytes to all, and adds up what comes;
// 1: one-shot: a block pushes its chunk to all, and each rank adds up all chunks;
// 2: two-shot: a rank adds up its piece of a chunk, which alone it is sent, and pushes the sum.
// Who adds has all parts and the same order, so each way has the same bits on every rank.
#include "kernels/cuda/ranks/exchange.h"

namespace npusim {

using T = Storage<params.dtype>;
using C = Compute<params.dtype>;
constexpr int64_t kPart = NPUSIM_PART, kElements = params.elements;
constexpr int64_t kBytes = kElements * static_cast<int64_t>(sizeof(T));
constexpr int kRanks = static_cast<int>(params.ranks);
constexpr bool kResidual = params.residual != 0;

template <int kCount>
struct Sum {
  C value[kCount];

  inline void set(const Pack<T, kCount>& part) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] = decode<C>(part.at[i]);
  }
  inline void add(const Pack<T, kCount>& part) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] += decode<C>(part.at[i]);
  }
  inline Pack<T, kCount> rounded() const {
    Pack<T, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.at[i] = encode<T>(value[i]);
    return result;
  }
};

template <int kCount>
inline Pack<T, kCount> with_residual(const Pack<T, kCount>& sum, const Pack<T, kCount>& residual) {
  Sum<kCount> total;
  total.set(sum);
  total.add(residual);
  return total.rounded();
}

// ---- 0

constexpr int kOfLine = 8 / static_cast<int>(sizeof(T));

inline Pack<T, kOfLine> load_part(const T* x, int64_t first, bool packed) {
  if (packed && first + kOfLine <= kElements) return load_pack<kOfLine>(x + first);
  Pack<T, kOfLine> pack{};
#pragma unroll
  for (int i = 0; i < kOfLine; ++i) {
    if (first + i < kElements) pack.at[i] = x[first + i];
  }
  return pack;
}

inline void reduce_lines(const T* x, const T* residual, T* y, const Link& link) {
  const int me = static_cast<int>(link.rank);
  const uint32_t round = latest_round(link) + 1;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x) * kOfLine;
  if (first < kElements) {
    const bool packed = is_packed<kOfLine>(x) && is_packed<kOfLine>(y) &&
                        (!kResidual || is_packed<kOfLine>(residual));
    const Pack<T, kOfLine> own = load_part(x, first, packed);
    const auto bits = __builtin_bit_cast(uint2, own);
#pragma unroll
    for (int step = 1; step < kRanks; ++step) {
      const int peer = (me + step) % kRanks;
      send_line(line_at(link, round, peer, me), bits, round);
    }
    Pack<T, kOfLine> addend{};
    if (kResidual) addend = load_part(residual, first, packed);
    Sum<kOfLine> total;
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      Pack<T, kOfLine> part = own;
      if (rank != me) {
        const uint2 come = take_line(link, rank, line_at(link, round, me, rank), round);
        part = __builtin_bit_cast(Pack<T, kOfLine>, come);
      }
      if (rank == 0) {
        total.set(part);
      } else {
        total.add(part);
      }
    }
    Pack<T, kOfLine> result = total.rounded();
    if (kResidual) result = with_residual(result, addend);
    if (packed && first + kOfLine <= kElements) {
      store_pack(y + first, result);
    } else {
#pragma unroll
      for (int i = 0; i < kOfLine; ++i) {
        if (first + i < kElements) y[first + i] = result.at[i];
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) link.epochs[blockIdx.x] = round;
}

// ---- 1 and 2: packs of kCount elements

template <int kCount>
inline Pack<T, kCount> load_come(const unsigned char* slot, int64_t item) {
  using W = typename Words<kCount* static_cast<int>(sizeof(T))>::type;
  return __builtin_bit_cast(Pack<T, kCount>, load_fresh(reinterpret_cast<const W*>(slot) + item));
}

// The sum of all ranks' `item`th packs; own ones are in x, others in slots of a round, in which
// they begin `skipped` packs later than in x.
template <int kCount>
inline Pack<T, kCount> sum_of(const Link& link, uint32_t round, const T* x, int64_t item,
                              int64_t skipped) {
  const int me = static_cast<int>(link.rank);
  Sum<kCount> total;
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    const Pack<T, kCount> part =
        rank == me ? load_pack<kCount>(x + item * kCount)
                   : load_come<kCount>(slot_at(link, round, me, rank), item - skipped);
    if (rank == 0) {
      total.set(part);
    } else {
      total.add(part);
    }
  }
  return total.rounded();
}

// With the `item`th pack of the residual, if there is one.
template <int kCount>
inline Pack<T, kCount> result_of(const Pack<T, kCount>& sum, const T* residual, int64_t item) {
  if (!kResidual) return sum;
  return with_residual(sum, load_pack<kCount>(residual + item * kCount));
}

template <int kCount>
inline void push_packs(unsigned char* slot, const T* x, int64_t count) {
  using W = typename Words<kCount* static_cast<int>(sizeof(T))>::type;
  push<W>(slot, reinterpret_cast<const unsigned char*>(x),
          count * kCount * static_cast<int64_t>(sizeof(T)));
}

// A chunk of `count` packs.
template <int kCount>
inline void one_shot(const Link& link, uint32_t& round, const T* x, const T* residual, T* y,
                     int64_t count) {
  const int me = static_cast<int>(link.rank);
  ++round;
#pragma unroll
  for (int step = 1; step < kRanks; ++step) {
    const int peer = (me + step) % kRanks;
    push_packs<kCount>(slot_at(link, round, peer, me), x, count);
  }
  meet_peers(link, round);
  move_items(
      0, count,
      [&](int64_t i) {
        return result_of<kCount>(sum_of<kCount>(link, round, x, i, 0), residual, i);
      },
      [&](int64_t i, const Pack<T, kCount>& result) { store_pack(y + i * kCount, result); });
}

template <int kCount>
inline void two_shot(const Link& link, uint32_t& round, const T* x, const T* residual, T* y,
                     int64_t count) {
  const int me = static_cast<int>(link.rank);
  const int64_t piece = (count + kRanks - 1) / kRanks;
  const auto first = [&](int rank) { return rank * piece < count ? rank * piece : count; };
  ++round;
#pragma unroll
  for (int step = 1; step < kRanks; ++step) {
    const int peer = (me + step) % kRanks;
    push_packs<kCount>(slot_at(link, round, peer, me), x + first(peer) * kCount,
                       first(peer + 1) - first(peer));
  }
  meet_peers(link, round);
  const uint32_t before = round++;
  const int64_t begin = first(me);
  using W = typename Words<kCount* static_cast<int>(sizeof(T))>::type;
  struct Sums {
    Pack<T, kCount> sum, result;
  };
  move_items(
      begin, first(me + 1),
      [&](int64_t i) -> Sums {
        const Pack<T, kCount> sum = sum_of<kCount>(link, before, x, i, begin);
        return {sum, result_of<kCount>(sum, residual, i)};
      },
      [&](int64_t i, const Sums& sums) {
        const W bits = __builtin_bit_cast(W, sums.sum);
#pragma unroll
        for (int step = 1; step < kRanks; ++step) {
          const int peer = (me + step) % kRanks;
          reinterpret_cast<W*>(slot_at(link, round, peer, me))[i - begin] = bits;
        }
        store_pack(y + i * kCount, sums.result);
      });
  meet_peers(link, round);
#pragma unroll
  for (int step = 1; step < kRanks; ++step) {
    const int peer = (me + step) % kRanks;
    const unsigned char* slot = slot_at(link, round, me, peer);
    const int64_t skipped = first(peer);
    move_items(
        skipped, first(peer + 1),
        [&](int64_t i) {
          return result_of<kCount>(load_come<kCount>(slot, i - skipped), residual, i);
        },
        [&](int64_t i, const Pack<T, kCount>& result) { store_pack(y + i * kCount, result); });
  }
}

template <int kCount>
inline void reduce_chunks(const T* x, const T* residual, T* y, const Link& link) {
  constexpr int64_t kEach = kPart / static_cast<int64_t>(sizeof(T));  // elements
  uint32_t round = latest_round(link);
  for (int64_t begin = blockIdx.x * kEach; begin < kElements; begin += gridDim.x * kEach) {
    const int64_t count = (kElements - begin < kEach ? kElements - begin : kEach) / kCount;
    if (NPUSIM_WAY == 2) {
      two_shot<kCount>(link, round, x + begin, residual + begin, y + begin, count);
    } else {
      one_shot<kCount>(link, round, x + begin, residual + begin, y + begin, count);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) link.epochs[blockIdx.x] = round;
}

// ---- What NCCL has brought: the same sums, and so the same bits.

template <int kCount>
inline void add_gathered(const T* gathered, const T* residual, T* y) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * NPUSIM_BLOCK;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x;
       i < kElements / kCount; i += step) {
    Sum<kCount> total;
    total.set(load_pack<kCount>(gathered + i * kCount));
#pragma unroll
    for (int rank = 1; rank < kRanks; ++rank) {
      total.add(load_pack<kCount>(gathered + rank * kElements + i * kCount));
    }
    store_pack(y + i * kCount, result_of<kCount>(total.rounded(), residual, i));
  }
}

inline void reduce(const T* x, const T* residual, T* y, const Link& link) {
  constexpr int kMost = 16 / static_cast<int>(sizeof(T));
  const bool packed = kElements % kMost == 0 && is_packed<kMost>(x) && is_packed<kMost>(y) &&
                      (!kResidual || is_packed<kMost>(residual));
  if (link.gathered != nullptr) {
    const T* gathered = reinterpret_cast<const T*>(link.gathered);
    return packed ? add_gathered<kMost>(gathered, residual, y)
                  : add_gathered<1>(gathered, residual, y);
  }
  if (NPUSIM_WAY == 0) return reduce_lines(x, residual, y, link);
  if (packed) return reduce_chunks<kMost>(x, residual, y, link);
  reduce_chunks<1>(x, residual, y, link);
}

}  // namespace npusim

// Only the host writes links, and never while ranks run: they are read while the launch before
// still runs. Of its operands (unwritten_operands) none is.
#if NPUSIM_RESIDUAL
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const npusim::T* x, const npusim::T* residual, npusim::T* y,
                  const npusim::Link* link) {
  npusim::launch_dependents();
  const npusim::Link known = *link;
  npusim::wait_on_dependencies();
  npusim::reduce(x, residual, y, known);
}
#else
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const npusim::T* x, npusim::T* y, const npusim::Link* link) {
  npusim::launch_dependents();
  const npusim::Link known = *link;
  npusim::wait_on_dependencies();
  npusim::reduce(x, x, y, known);
}
#endif
