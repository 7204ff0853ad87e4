// Hopper's warpgroup matrix multiply-accumulate (wgmma): four warps multiply operands in shared
// memory asynchronously. Only for targets such as sm_90a. The accumulators of each warp are 16
// rows, laid out as those of mma_16x8x16.
#pragma once
#include "kernels/cuda/common/mma.h"

namespace npusim {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

// The descriptor of a tile in shared memory: rows of 128 bytes, 128-byte swizzle (as in MmaTile).
// Where the instruction takes b transposed, rows go along K, and the next 64 columns lie
// `panel_bytes` further on.
inline unsigned long long matrix_descriptor(unsigned at, unsigned panel_bytes = 16) {
  constexpr unsigned long long kEightRows = 1024 >> 4, kSwizzled = 1;
  const unsigned long long panel = panel_bytes >> 4;
  return (at & 0x3ffff) >> 4 | panel << 16 | kEightRows << 32 | kSwizzled << 62;
}

// Between writes to shared memory and the wgmma or bulk copies that read it.
inline void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
inline void warpgroup_arrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
inline void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all but the last `kPending` committed groups of wgmma have finished.
template <int kPending>
void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading accumulators before warpgroup_wait.
template <int kBlocks>
void warpgroup_fence_operand(float (&c)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[j][e])::"memory");
  }
}

// The same for fragments of a, which the compiler keeps until here.
template <int kSteps>
void warpgroup_fence_operand(unsigned (&a)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(a[i][e])::"memory");
  }
}

// Starts c += a · b of 64 rows by 8 * kBlocks columns, K 16; warpgroup_wait says that it has
// finished.
template <typename T, int kBlocks>
void wgmma(float (&c)[kBlocks][4], unsigned long long a, unsigned long long b);

// The same of b transposed.
template <typename T, int kBlocks>
void wgmma_transposed(float (&c)[kBlocks][4], unsigned long long a, unsigned long long b);

// The same of c = a · b.
template <typename T, int kBlocks>
void wgmma_from_zero(float (&c)[kBlocks][4], unsigned long long a, unsigned long long b);

// Starts c += a · b of a fragment of a in registers, as mma_16x8x16 has it, and b transposed.
template <typename T, int kBlocks>
void wgmma_fragment(float (&c)[kBlocks][4], const unsigned (&a)[4], unsigned long long b);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// One instruction for each width, whose operands are the four accumulators of every block of
// columns.
// clang-format off
#define NPUSIM_SUMS_1(m, i) m(c[i][0]), m(c[i][1]), m(c[i][2]), m(c[i][3])
#define NPUSIM_SUMS_2(m, i) NPUSIM_SUMS_1(m, i), NPUSIM_SUMS_1(m, i + 1)
#define NPUSIM_SUMS_4(m, i) NPUSIM_SUMS_2(m, i), NPUSIM_SUMS_2(m, i + 2)
#define NPUSIM_SUMS_8(m, i) NPUSIM_SUMS_4(m, i), NPUSIM_SUMS_4(m, i + 4)
#define NPUSIM_SUMS_16(m, i) NPUSIM_SUMS_8(m, i), NPUSIM_SUMS_8(m, i + 8)
#define NPUSIM_SUMS_32(m, i) NPUSIM_SUMS_16(m, i), NPUSIM_SUMS_16(m, i + 16)
#define NPUSIM_SUMS_5(m, i) NPUSIM_SUMS_4(m, i), NPUSIM_SUMS_1(m, i + 4)
#define NPUSIM_SUMS_6(m, i) NPUSIM_SUMS_4(m, i), NPUSIM_SUMS_2(m, i + 4)
#define NPUSIM_SUMS_7(m, i) NPUSIM_SUMS_6(m, i), NPUSIM_SUMS_1(m, i + 6)
#define NPUSIM_SUMS_9(m, i) NPUSIM_SUMS_8(m, i), NPUSIM_SUMS_1(m, i + 8)
#define NPUSIM_SUMS_10(m, i) NPUSIM_SUMS_8(m, i), NPUSIM_SUMS_2(m, i + 8)
#define NPUSIM_SUMS_11(m, i) NPUSIM_SUMS_10(m, i), NPUSIM_SUMS_1(m, i + 10)
#define NPUSIM_SUMS_12(m, i) NPUSIM_SUMS_8(m, i), NPUSIM_SUMS_4(m, i + 8)
#define NPUSIM_SUMS_13(m, i) NPUSIM_SUMS_12(m, i), NPUSIM_SUMS_1(m, i + 12)
#define NPUSIM_SUMS_14(m, i) NPUSIM_SUMS_12(m, i), NPUSIM_SUMS_2(m, i + 12)
#define NPUSIM_SUMS_17(m, i) NPUSIM_SUMS_16(m, i), NPUSIM_SUMS_1(m, i + 16)
#define NPUSIM_SUMS_18(m, i) NPUSIM_SUMS_16(m, i), NPUSIM_SUMS_2(m, i + 16)
#define NPUSIM_SUMS_20(m, i) NPUSIM_SUMS_16(m, i), NPUSIM_SUMS_4(m, i + 16)
#define NPUSIM_SUMS_24(m, i) NPUSIM_SUMS_16(m, i), NPUSIM_SUMS_8(m, i + 16)
#define NPUSIM_LIST_8 "%0, %1, %2, %3"
#define NPUSIM_LIST_16 NPUSIM_LIST_8 ", %4, %5, %6, %7"
#define NPUSIM_LIST_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NPUSIM_LIST_40 NPUSIM_LIST_32 ", %16, %17, %18, %19"
#define NPUSIM_LIST_48 NPUSIM_LIST_40 ", %20, %21, %22, %23"
#define NPUSIM_LIST_56 NPUSIM_LIST_48 ", %24, %25, %26, %27"
#define NPUSIM_LIST_64 NPUSIM_LIST_56 ", %28, %29, %30, %31"
#define NPUSIM_LIST_72 NPUSIM_LIST_64 ", %32, %33, %34, %35"
#define NPUSIM_LIST_80 NPUSIM_LIST_72 ", %36, %37, %38, %39"
#define NPUSIM_LIST_88 NPUSIM_LIST_80 ", %40, %41, %42, %43"
#define NPUSIM_LIST_96 NPUSIM_LIST_88 ", %44, %45, %46, %47"
#define NPUSIM_LIST_104 NPUSIM_LIST_96 ", %48, %49, %50, %51"
#define NPUSIM_LIST_112 NPUSIM_LIST_104 ", %52, %53, %54, %55"
#define NPUSIM_LIST_128 NPUSIM_LIST_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NPUSIM_LIST_136 NPUSIM_LIST_128 ", %64, %65, %66, %67"
#define NPUSIM_LIST_144 NPUSIM_LIST_136 ", %68, %69, %70, %71"
#define NPUSIM_LIST_160 NPUSIM_LIST_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NPUSIM_LIST_192 NPUSIM_LIST_160 \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NPUSIM_LIST_256 NPUSIM_LIST_192 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126" \
  ", %127"
// clang-format on

#define NPUSIM_WGMMA(name, turned, width, blocks, type, kind, p, q)                       \
  template <>                                                                             \
  inline void name<type, blocks>(float (&c)[blocks][4], unsigned long long a,             \
                                 unsigned long long b) {                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." kind "." kind      \
                 " {" NPUSIM_LIST_##width "}, %" #p ", %" #q ", 1, 1, 1, 0, " #turned ";" \
                 : NPUSIM_SUMS_##blocks("+f", 0)                                          \
                 : "l"(a), "l"(b));                                                       \
  }
#define NPUSIM_WGMMA_TYPES(width, blocks, p, q)                 \
  NPUSIM_WGMMA(wgmma, 0, width, blocks, bfloat16, "bf16", p, q) \
  NPUSIM_WGMMA(wgmma, 0, width, blocks, float16, "f16", p, q)
#define NPUSIM_WGMMA_TURNED(width, blocks, p, q)                           \
  NPUSIM_WGMMA(wgmma_transposed, 1, width, blocks, bfloat16, "bf16", p, q) \
  NPUSIM_WGMMA(wgmma_transposed, 1, width, blocks, float16, "f16", p, q)
NPUSIM_WGMMA_TURNED(64, 8, 32, 33)
NPUSIM_WGMMA_TURNED(128, 16, 64, 65)
NPUSIM_WGMMA_TYPES(8, 1, 4, 5)
NPUSIM_WGMMA_TYPES(16, 2, 8, 9)
NPUSIM_WGMMA_TYPES(32, 4, 16, 17)
NPUSIM_WGMMA_TYPES(64, 8, 32, 33)
NPUSIM_WGMMA_TYPES(96, 12, 48, 49)
NPUSIM_WGMMA_TYPES(104, 13, 52, 53)
NPUSIM_WGMMA_TYPES(112, 14, 56, 57)
NPUSIM_WGMMA_TYPES(128, 16, 64, 65)
NPUSIM_WGMMA_TYPES(136, 17, 68, 69)
NPUSIM_WGMMA_TYPES(144, 18, 72, 73)
NPUSIM_WGMMA_TYPES(160, 20, 80, 81)
NPUSIM_WGMMA_TYPES(192, 24, 96, 97)
NPUSIM_WGMMA_TYPES(256, 32, 128, 129)

// Of attention: scores of queries and keys, which begin at zero, and weighted sums of values.
#define NPUSIM_WGMMA_ZERO(width, blocks, type, kind, p, q)                               \
  template <>                                                                            \
  inline void wgmma_from_zero<type, blocks>(float (&c)[blocks][4], unsigned long long a, \
                                            unsigned long long b) {                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." kind "." kind     \
                 " {" NPUSIM_LIST_##width "}, %" #p ", %" #q ", 0, 1, 1, 0, 0;"          \
                 : NPUSIM_SUMS_##blocks("=f", 0)                                         \
                 : "l"(a), "l"(b));                                                      \
  }
#define NPUSIM_WGMMA_FRAGMENT(width, blocks, type, kind, p, q, r, s, t)                   \
  template <>                                                                             \
  inline void wgmma_fragment<type, blocks>(float (&c)[blocks][4], const unsigned (&a)[4], \
                                           unsigned long long b) {                        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." kind "." kind      \
                 " {" NPUSIM_LIST_##width "}, {%" #p ", %" #q ", %" #r ", %" #s "}, %" #t \
                                          ", 1, 1, 1, 1;"                                 \
                 : NPUSIM_SUMS_##blocks("+f", 0)                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                   \
  }
#define NPUSIM_WGMMA_SCORES(width, blocks, p, q)           \
  NPUSIM_WGMMA_ZERO(width, blocks, bfloat16, "bf16", p, q) \
  NPUSIM_WGMMA_ZERO(width, blocks, float16, "f16", p, q)
#define NPUSIM_WGMMA_VALUES(width, blocks, p, q, r, s, t)               \
  NPUSIM_WGMMA_FRAGMENT(width, blocks, bfloat16, "bf16", p, q, r, s, t) \
  NPUSIM_WGMMA_FRAGMENT(width, blocks, float16, "f16", p, q, r, s, t)
NPUSIM_WGMMA_TYPES(80, 10, 40, 41)
NPUSIM_WGMMA_SCORES(64, 8, 32, 33)
NPUSIM_WGMMA_SCORES(80, 10, 40, 41)
NPUSIM_WGMMA_SCORES(96, 12, 48, 49)
NPUSIM_WGMMA_SCORES(112, 14, 56, 57)
NPUSIM_WGMMA_SCORES(128, 16, 64, 65)
NPUSIM_WGMMA_VALUES(32, 4, 16, 17, 18, 19, 20)
NPUSIM_WGMMA_VALUES(40, 5, 20, 21, 22, 23, 24)
NPUSIM_WGMMA_VALUES(48, 6, 24, 25, 26, 27, 28)
NPUSIM_WGMMA_VALUES(56, 7, 28, 29, 30, 31, 32)
NPUSIM_WGMMA_VALUES(64, 8, 32, 33, 34, 35, 36)
NPUSIM_WGMMA_VALUES(72, 9, 36, 37, 38, 39, 40)
NPUSIM_WGMMA_VALUES(80, 10, 40, 41, 42, 43, 44)
NPUSIM_WGMMA_VALUES(88, 11, 44, 45, 46, 47, 48)
NPUSIM_WGMMA_VALUES(96, 12, 48, 49, 50, 51, 52)
NPUSIM_WGMMA_VALUES(112, 14, 56, 57, 58, 59, 60)
NPUSIM_WGMMA_VALUES(128, 16, 64, 65, 66, 67, 68)
NPUSIM_WGMMA_VALUES(160, 20, 80, 81, 82, 83, 84)
NPUSIM_WGMMA_VALUES(192, 24, 96, 97, 98, 99, 100)
NPUSIM_WGMMA_VALUES(256, 32, 128, 129, 130, 131, 132)
#endif

}  // namespace npusim
