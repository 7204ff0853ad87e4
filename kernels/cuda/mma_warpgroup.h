// Hopper's products of a whole warpgroup (four warps), whose operands lie in shared memory; for
// targets such as sm_90a. Their sums lie as those of multiply_add do, sixteen rows a warp.
#pragma once
#include "kernels/cuda/mma.h"

namespace npusim {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHasWarpgroups = true;
#else
constexpr bool kHasWarpgroups = false;
#endif

// Describes a tile in shared memory: rows of 128 bytes whose chunks are swizzled as Tile does.
inline unsigned long long tile_descriptor(unsigned at) {
  constexpr unsigned long long kEightRows = 1024 >> 4, kSwizzled = 1;
  return (at & 0x3ffff) >> 4 | 1ULL << 16 | kEightRows << 32 | kSwizzled << 62;
}

// Between writes to shared memory and the products that read it.
inline void publish_to_warpgroups() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all but the last `kPending` groups of products are there.
template <int kPending>
void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading sums before they are there.
template <int kBlocks>
void hold(float (&c)[kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[j][e])::"memory");
  }
}

// c += a · b: 64 rows by 8 * kBlocks columns, K 16; starts, and ends with wait_products.
template <typename T, int kBlocks>
void multiply_add_group(float (&c)[kBlocks][4], unsigned long long a, unsigned long long b);

// One instruction for each width, whose operands are the four sums of every block of columns.
// clang-format off
#define NPUSIM_SUMS_1(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define NPUSIM_SUMS_2(i) NPUSIM_SUMS_1(i), NPUSIM_SUMS_1(i + 1)
#define NPUSIM_SUMS_4(i) NPUSIM_SUMS_2(i), NPUSIM_SUMS_2(i + 2)
#define NPUSIM_SUMS_8(i) NPUSIM_SUMS_4(i), NPUSIM_SUMS_4(i + 4)
#define NPUSIM_SUMS_16(i) NPUSIM_SUMS_8(i), NPUSIM_SUMS_8(i + 8)
#define NPUSIM_SUMS_32(i) NPUSIM_SUMS_16(i), NPUSIM_SUMS_16(i + 16)
#define NPUSIM_SUMS_12(i) NPUSIM_SUMS_8(i), NPUSIM_SUMS_4(i + 8)
#define NPUSIM_SUMS_13(i) NPUSIM_SUMS_12(i), NPUSIM_SUMS_1(i + 12)
#define NPUSIM_SUMS_14(i) NPUSIM_SUMS_12(i), NPUSIM_SUMS_2(i + 12)
#define NPUSIM_SUMS_17(i) NPUSIM_SUMS_16(i), NPUSIM_SUMS_1(i + 16)
#define NPUSIM_SUMS_20(i) NPUSIM_SUMS_16(i), NPUSIM_SUMS_4(i + 16)
#define NPUSIM_SUMS_24(i) NPUSIM_SUMS_16(i), NPUSIM_SUMS_8(i + 16)
#define NPUSIM_GROUP_32(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
    "}, %16, %17, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_4(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_64(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
    "}, %32, %33, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_8(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_96(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
    "}, %48, %49, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_12(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_104(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n104k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51" \
    "}, %52, %53, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_13(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_112(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n112k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55" \
    "}, %56, %57, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_14(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_128(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63" \
    "}, %64, %65, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_16(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_136(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n136k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67" \
    "}, %68, %69, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_17(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_160(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n160k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    "}, %80, %81, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_20(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_192(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
    "}, %96, %97, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_24(0) : "l"(a), "l"(b))
#define NPUSIM_GROUP_256(kind) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." kind " {" \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
    "}, %128, %129, 1, 1, 1, 0, 0;" \
    : NPUSIM_SUMS_32(0) : "l"(a), "l"(b))
// clang-format on

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define NPUSIM_GROUP(width, type, kind)                                                           \
  template <>                                                                                     \
  inline void multiply_add_group<type, width / 8>(float (&c)[width / 8][4], unsigned long long a, \
                                                  unsigned long long b) {                         \
    NPUSIM_GROUP_##width(kind);                                                                   \
  }
NPUSIM_GROUP(32, bfloat16, "bf16.bf16")
NPUSIM_GROUP(64, bfloat16, "bf16.bf16")
NPUSIM_GROUP(96, bfloat16, "bf16.bf16")
NPUSIM_GROUP(104, bfloat16, "bf16.bf16")
NPUSIM_GROUP(112, bfloat16, "bf16.bf16")
NPUSIM_GROUP(128, bfloat16, "bf16.bf16")
NPUSIM_GROUP(136, bfloat16, "bf16.bf16")
NPUSIM_GROUP(160, bfloat16, "bf16.bf16")
NPUSIM_GROUP(192, bfloat16, "bf16.bf16")
NPUSIM_GROUP(256, bfloat16, "bf16.bf16")
NPUSIM_GROUP(32, float16, "f16.f16")
NPUSIM_GROUP(64, float16, "f16.f16")
NPUSIM_GROUP(96, float16, "f16.f16")
NPUSIM_GROUP(104, float16, "f16.f16")
NPUSIM_GROUP(112, float16, "f16.f16")
NPUSIM_GROUP(128, float16, "f16.f16")
NPUSIM_GROUP(136, float16, "f16.f16")
NPUSIM_GROUP(160, float16, "f16.f16")
NPUSIM_GROUP(192, float16, "f16.f16")
NPUSIM_GROUP(256, float16, "f16.f16")
#endif

}  // namespace npusim
