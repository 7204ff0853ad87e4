// y[rank] = x of that rank, on every rank: a one-shot push. NPUSIM_PART bytes of x are a block's in
// a round; what rounds are is said in exchange.h.
#include "kernels/cuda/ranks/exchange.h"

namespace npusim {

constexpr int64_t kPart = NPUSIM_PART, kBytes = params.bytes;
constexpr int kRanks = static_cast<int>(params.ranks);

template <typename T>
inline void all_gather(const unsigned char* x, unsigned char* y, const Link& link) {
  const int me = static_cast<int>(link.rank);
  uint32_t round = latest_round(link);
  for (int64_t begin = blockIdx.x * kPart; begin < kBytes; begin += gridDim.x * kPart) {
    const int64_t bytes = kBytes - begin < kPart ? kBytes - begin : kPart;
    ++round;
#pragma unroll
    for (int step = 1; step < kRanks; ++step) {
      const int peer = (me + step) % kRanks;
      push<T>(slot_at(link, round, peer, me), x + begin, bytes);
    }
    push<T>(y + me * kBytes + begin, x + begin, bytes);
    meet_peers(link, round);
#pragma unroll
    for (int step = 1; step < kRanks; ++step) {
      const int peer = (me + step) % kRanks;
      take<T>(y + peer * kBytes + begin, slot_at(link, round, me, peer), bytes);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) link.epochs[blockIdx.x] = round;
}

template <typename T>
inline void copy_gathered(const unsigned char* gathered, unsigned char* y) {
  constexpr int64_t kCount = kRanks * kBytes / static_cast<int64_t>(sizeof(T));
  const int64_t step = static_cast<int64_t>(gridDim.x) * NPUSIM_BLOCK;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * NPUSIM_BLOCK + threadIdx.x; i < kCount;
       i += step) {
    reinterpret_cast<T*>(y)[i] = reinterpret_cast<const T*>(gathered)[i];
  }
}

template <typename T>
inline void gather(const unsigned char* x, unsigned char* y, const Link& link) {
  if (link.gathered != nullptr) return copy_gathered<T>(link.gathered, y);
  all_gather<T>(x, y, link);
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const unsigned char* x, unsigned char* y, const npusim::Link* link) {
  using namespace npusim;
  const auto places = reinterpret_cast<unsigned long long>(x) |
                      reinterpret_cast<unsigned long long>(y) |
                      static_cast<unsigned long long>(kBytes);
  if (places % 16 == 0) {
    gather<uint4>(x, y, *link);
  } else if (places % 4 == 0) {
    gather<unsigned>(x, y, *link);
  } else {
    gather<unsigned char>(x, y, *link);
  }
}
