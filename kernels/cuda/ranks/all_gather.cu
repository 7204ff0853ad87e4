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

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const unsigned char* x, unsigned char* y, const npusim::Link* link) {
  using namespace npusim;
  const auto places = reinterpret_cast<unsigned long long>(x) |
                      reinterpret_cast<unsigned long long>(y) |
                      static_cast<unsigned long long>(kBytes);
  if (places % 16 == 0) {
    all_gather<uint4>(x, y, *link);
  } else if (places % 4 == 0) {
    all_gather<unsigned>(x, y, *link);
  } else {
    all_gather<unsigned char>(x, y, *link);
  }
}
