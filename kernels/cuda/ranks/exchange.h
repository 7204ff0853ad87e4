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
// Small messages go in lines instead, in which each half has the round's number beside its bytes:
// nothing is released, and nothing is waited for but the bytes. A block has lines of its own, and
// the same numbers count its rounds.
//
// Numbers of rounds are read past the multiprocessor's cache: a launch may have started there while
// those before it, which count them on, still ran.
//
// Whoever waits longer than `patience` says for whom and for what, and has everybody stop waiting:
// nobody hangs.
#pragma once
#include "kernels/cuda/common/scalar.h"

namespace npusim {

// cpp/cuda/exchange.h has the same.
constexpr int kMostRanks = 8, kExchangeBlocks = 32, kFlagStride = 32;  // of a flag, in words
constexpr int kLines = 256;                                            // of a block in a round
constexpr int64_t kChunk = 128 << 10;                                  // bytes of a slot
struct Link {
  uint32_t rank, ranks;
  uint64_t patience;  // nanoseconds
  uint32_t* epochs;   // by block
  uint32_t* stop;     // of the host; not 0: nobody waits any more
  // Of the host: 1 + the rank that was waited for, the block that waited, for which round, and
  // which it saw instead.
  unsigned char* lost;
  unsigned char* mailboxes[kMostRanks];
  // All ranks' x one behind another, which NCCL has brought; null where kernels exchange.
  const unsigned char* gathered;
};

inline uint32_t* flag_at(const Link& link, int to, int from) {
  auto* flags = reinterpret_cast<uint32_t*>(link.mailboxes[to]);
  return flags + (static_cast<int>(blockIdx.x) * kMostRanks + from) * kFlagStride;
}

constexpr int64_t kFlagBytes = int64_t{4} * kExchangeBlocks * kMostRanks * kFlagStride;
constexpr int64_t kLineBytes = int64_t{16} * 2 * kExchangeBlocks * kMostRanks * kLines;

// The number of what a sender writes to for this block in a round, among all there are.
inline int64_t place_of(uint32_t round, int senders, int from) {
  const int64_t block = static_cast<int64_t>(round & 1) * kExchangeBlocks + blockIdx.x;
  return block * senders + from;
}

inline unsigned char* slot_at(const Link& link, uint32_t round, int to, int from) {
  const int64_t place = place_of(round, static_cast<int>(link.ranks), from);
  return link.mailboxes[to] + kFlagBytes + kLineBytes + place * kChunk;
}

inline unsigned char* line_at(const Link& link, uint32_t round, int to, int from) {
  const int64_t place = place_of(round, kMostRanks, from) * kLines + threadIdx.x;
  return link.mailboxes[to] + kFlagBytes + place * 16;
}

#ifdef __CUDA_ARCH__
inline void raise_flag(uint32_t* flag, uint32_t round) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(round) : "memory");
}

inline uint32_t flag_of(const uint32_t* flag) {
  uint32_t round;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(round) : "l"(flag) : "memory");
  return round;
}

inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Eight bytes go as one, as NCCL relies on too.
inline void store_line(unsigned char* line, const uint4& v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(line), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

inline uint4 load_line(const unsigned char* line) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(line)
               : "memory");
  return v;
}
#else
void raise_flag(uint32_t* flag, uint32_t round);
uint32_t flag_of(const uint32_t* flag);
uint64_t nanoseconds();
void store_line(unsigned char* line, const uint4& v);
uint4 load_line(const unsigned char* line);
#endif

// The block's latest round.
inline uint32_t latest_round(const Link& link) {
  return *static_cast<volatile const uint32_t*>(link.epochs + blockIdx.x);
}

// Looks until `seen()`, the number of a round of another rank's, is not before `round`; or until it
// is in vain.
template <typename Seen>
inline void wait_until(const Link& link, int from, uint32_t round, const Seen& seen) {
  constexpr unsigned kLooks = 256;  // between two at the clock
  const auto has_come = [&](uint32_t number) { return static_cast<int32_t>(number - round) >= 0; };
  uint32_t number = seen();
  if (has_come(number)) return;
  const uint64_t start = nanoseconds();
  for (unsigned looks = 1; !has_come(number = seen()); ++looks) {
    if (looks % kLooks != 0) continue;
    if (*static_cast<volatile uint32_t*>(link.stop) != 0) return;
    if (nanoseconds() - start < link.patience) continue;
    store_line(link.lost, {1 + static_cast<unsigned>(from), blockIdx.x, round, number});
    *static_cast<volatile uint32_t*>(link.stop) = 1;
    return;
  }
}

inline void wait_for_flag(const Link& link, int from, uint32_t round) {
  const uint32_t* flag = flag_at(link, static_cast<int>(link.rank), from);
  wait_until(link, from, round, [&] { return flag_of(flag); });
}

// A line is eight bytes on their way, each half with the number of its round: who sees that has the
// half, so that nothing else is waited for.
inline void send_line(unsigned char* line, const uint2& value, uint32_t round) {
  store_line(line, {value.x, round, value.y, round});
}

inline uint2 take_line(const Link& link, int from, const unsigned char* line, uint32_t round) {
  uint4 seen;
  wait_until(link, from, round, [&] {
    seen = load_line(line);
    return seen.y == round ? seen.w : seen.y;
  });
  return {seen.x, seen.z};
}

// Bytes that nobody keeps in a cache of the multiprocessor: others write them.
template <typename T>
inline T load_fresh(const T* at) {
  return __ldcg(at);
}

// store(i, load(i)) for each i of [first, end), the block's threads in turn. A thread loads several
// before it stores the first: one load at a time would leave most of the way unused.
template <typename Load, typename Store>
inline void move_items(int64_t first, int64_t end, const Load& load, const Store& store) {
  constexpr int kAtOnce = 4;
  int64_t i = first + static_cast<int64_t>(threadIdx.x);
  for (; i + (kAtOnce - 1) * NPUSIM_BLOCK < end; i += kAtOnce * NPUSIM_BLOCK) {
    decltype(load(i)) items[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) items[k] = load(i + k * NPUSIM_BLOCK);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) store(i + k * NPUSIM_BLOCK, items[k]);
  }
  for (; i < end; i += NPUSIM_BLOCK) store(i, load(i));
}

template <typename T>
inline void push(unsigned char* to, const unsigned char* from, int64_t bytes) {
  move_items(
      0, bytes / static_cast<int64_t>(sizeof(T)),
      [&](int64_t i) { return reinterpret_cast<const T*>(from)[i]; },
      [&](int64_t i, const T& item) { reinterpret_cast<T*>(to)[i] = item; });
}

template <typename T>
inline void take(unsigned char* to, const unsigned char* from, int64_t bytes) {
  move_items(
      0, bytes / static_cast<int64_t>(sizeof(T)),
      [&](int64_t i) { return load_fresh(reinterpret_cast<const T*>(from) + i); },
      [&](int64_t i, const T& item) { reinterpret_cast<T*>(to)[i] = item; });
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
