// How ranks on GPUs of one host hand each other bytes, without multicast and without a barrier.
//
// Every rank has a mailbox that all others write to: for each block of an exchange's launch a flag
// and two slots a sender. A block counts its rounds (`epochs`, which outlive the launch): in a
// round it pushes its chunk into its slot of every peer's mailbox and raises its flag there to the
// round's number with a release at the scope of the system; then it waits until its own flags have
// that number (acquire), and reads what has come.
//
// Why a round finds no flag and no bytes of another one. Numbers only grow, so a flag of an earlier
// round, or of the replay before, is too low. Slots alternate with the number's last bit: a sender
// writes a slot again two rounds later, which it begins only after it saw this rank's flag of the
// round between, and this rank raised that one after it had read the slot. All of it is about one
// block and the block of the same number elsewhere: other blocks have other flags and slots, and
// all ranks run the same launches in the same order.
//
// Whoever waits longer than `patience` says for whom, and has everybody stop waiting: nobody hangs.
#pragma once
#include "kernels/cuda/common/scalar.h"

namespace npusim {

// cpp/cuda/exchange.h has the same.
constexpr int kMostRanks = 8, kExchangeBlocks = 32, kFlagStride = 32;  // of a flag, in words
constexpr int64_t kChunk = 16384;  // bytes of a slot
struct Link {
  uint32_t rank, ranks;
  uint64_t patience;  // nanoseconds
  uint32_t* epochs;   // by block
  uint32_t* stop;     // of the host; not 0: nobody waits any more
  uint32_t* lost;     // of the host: 1 + the rank that was waited for
  unsigned char* mailboxes[kMostRanks];
};

inline uint32_t* flag_at(const Link& link, int to, int from) {
  auto* flags = reinterpret_cast<uint32_t*>(link.mailboxes[to]);
  return flags + (static_cast<int>(blockIdx.x) * kMostRanks + from) * kFlagStride;
}

inline unsigned char* slot_at(const Link& link, uint32_t round, int to, int from) {
  constexpr int64_t kFlagBytes = int64_t{4} * kExchangeBlocks * kMostRanks * kFlagStride;
  const int64_t block = static_cast<int64_t>(round & 1) * kExchangeBlocks + blockIdx.x;
  return link.mailboxes[to] + kFlagBytes + (block * link.ranks + from) * kChunk;
}

inline void raise_flag(uint32_t* flag, uint32_t round) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(round) : "memory");
}

inline bool is_raised(const uint32_t* flag, uint32_t round) {
  uint32_t seen;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  return static_cast<int32_t>(seen - round) >= 0;
}

inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

inline void wait_for_flag(const Link& link, int from, uint32_t round) {
  constexpr unsigned kLooks = 256;  // between two at the clock
  const uint32_t* flag = flag_at(link, static_cast<int>(link.rank), from);
  if (is_raised(flag, round)) return;
  const uint64_t start = nanoseconds();
  for (unsigned looks = 1; !is_raised(flag, round); ++looks) {
    if (looks % kLooks != 0) continue;
    if (*static_cast<volatile uint32_t*>(link.stop) != 0) return;
    if (nanoseconds() - start < link.patience) continue;
    *static_cast<volatile uint32_t*>(link.lost) = 1 + static_cast<uint32_t>(from);
    *static_cast<volatile uint32_t*>(link.stop) = 1;
    return;
  }
}

// Bytes that nobody keeps in a cache of the multiprocessor: others write them.
template <typename T>
inline T load_fresh(const T* at) {
  return __ldcg(at);
}

template <typename T>
inline void push(unsigned char* to, const unsigned char* from, int64_t bytes) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t i = threadIdx.x; i < count; i += NPUSIM_BLOCK) {
    reinterpret_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[i];
  }
}

template <typename T>
inline void take(unsigned char* to, const unsigned char* from, int64_t bytes) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t i = threadIdx.x; i < count; i += NPUSIM_BLOCK) {
    reinterpret_cast<T*>(to)[i] = load_fresh(reinterpret_cast<const T*>(from) + i);
  }
}

// What all threads of the block have stored goes to all peers: a thread for each.
inline void meet_peers(const Link& link, uint32_t round) {
  __syncthreads();
  const int peer = static_cast<int>(threadIdx.x), me = static_cast<int>(link.rank);
  if (peer < static_cast<int>(link.ranks) && peer != me) {
    raise_flag(flag_at(link, peer, me), round);
    wait_for_flag(link, peer, round);
  }
  __syncthreads();
}

}  // namespace npusim
