// Rates of arithmetic from registers, and of reading memory: the roofs that profiles are held to
// (S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
// multicore architectures", Communications of the ACM 52(4), 2009).
#include "kernels/cpu/rates.h"

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/simd.h"

namespace npusim::cpu {
namespace NPUSIM_ISA {
namespace {

// Sums that do not wait for each other: as many as hide an instruction's latency (4 cycles, two a
// cycle) and fit into the sixteen registers of the smaller sets beside two factors.
constexpr int kSums = 12;

// A value the compiler knows nothing of, so that no loop is computed when compiling.
template <typename V>
V opaque(V v) {
#if defined(__x86_64__)
  asm volatile("" : "+x"(v));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(v));
#endif
  return v;
}

template <typename Sum, typename Add>
float rounds_of(int64_t rounds, Sum start, const Add& add) {
  Sum sums[kSums];
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) sums[i] = opaque(start);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = opaque(add(sums[i]));
  }
  float all = 0;
  for (const Sum& sum : sums) all += static_cast<float>(sum[0]);
  return all;
}

float float32(int64_t rounds) {
  const Vec a = opaque(broadcast(0.999f)), b = opaque(broadcast(0.001f));
  return rounds_of(rounds, Vec{}, [&](Vec sum) { return sum * a + b; });
}

float bfloat16_pairs(int64_t rounds) {
  const BVec a = opaque(BVec{} + uint16_t{0x3F80}), b = opaque(BVec{} + uint16_t{0x2F80});
  return rounds_of(rounds, Vec{}, [&](Vec sum) { return dot_pairs(sum, a, b); });
}

float int8_quads(int64_t rounds) {
  const IVec a = opaque(IVec{} + 0x01010101), b = opaque(IVec{} + 0x01FF01FF);
  return rounds_of(rounds, IVec{}, [&](IVec sum) { return dot_quads(sum, a, b); });
}

float read(const float* from, int64_t count) {
  Vec sums[8] = {};
  int64_t i = 0;
  for (; i + 8 * kLanes <= count; i += 8 * kLanes) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; ++v) sums[v] += load(from + i + v * kLanes);
  }
  float all = 0;
  for (const Vec& sum : sums) all += opaque(sum)[0];
  return all;
}

}  // namespace

const RateLoops& rate_loops() {
  static constexpr RateLoops kLoops = {
      {{"float32", int64_t{2} * kSums * kLanes, float32},
       {"bfloat16", int64_t{2} * kSums * kPairLanes, bfloat16_pairs},
       {"int8", int64_t{2} * kSums * 2 * kPairLanes, int8_quads}},
      read};
  return kLoops;
}

}  // namespace NPUSIM_ISA
}  // namespace npusim::cpu
