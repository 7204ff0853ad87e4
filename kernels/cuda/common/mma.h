// Tensor core instructions for float16 and bfloat16 (mma.sync, ldmatrix), asynchronous copies to
// shared memory (cp.async), and prefetches to L2.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

#ifdef __CUDA_ARCH__
// c += a · b: m16n8k16. Lane (g, t) = (lane / 4, lane % 4) holds, in pairs along K, rows g and g +
// 8 of a and column g of b at K 2t and 2t + 8; of c, columns 2t and 2t + 1 of rows g and g + 8.
template <typename T>
void mma_16x8x16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                 unsigned b1) {
  if constexpr (kSame<T, bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// ldmatrix.x4: four 8x8 matrices, whose rows lanes 0-7, 8-15, 16-23 and 24-31 point at.
inline void ldmatrix(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
inline void ldmatrix_transposed(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}

inline void store_shared(unsigned at, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

inline void store_shared(unsigned at, unsigned v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
inline void store_shared(unsigned at, float first, float second) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(first), "f"(second) : "memory");
}
inline uint4 load_shared(unsigned at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
inline unsigned load_shared_word(unsigned at) {
  unsigned v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

// Starts copying 16 bytes to shared memory, or fills them with zeros where they do not exist.
inline void cp_async(unsigned to, const void* from, bool exist) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exist ? 16 : 0)
               : "memory");
}
inline void cp_async(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The address itself: what lies at constant offsets from it is not given addresses of its own.
template <typename T>
const T* as_base(const T* address) {
  asm("" : "+l"(address));
  return address;
}
inline unsigned as_base(unsigned address) {
  asm("" : "+r"(address));
  return address;
}
// The same of bytes that nobody reads again: L2 evicts their lines first.
inline void cp_async_evict_first(unsigned to, const void* from, bool exist) {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(from), "r"(exist ? 16 : 0), "l"(policy)
               : "memory");
}
// Starts copying 4, 8 or 16 bytes that lie on as many, or fills them with zeros.
template <int kCount>
void cp_async_words(unsigned to, const void* from, bool exist) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kCount),
               "r"(exist ? kCount : 0)
               : "memory");
}
inline void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all but the last `kPending` committed groups have arrived.
template <int kPending>
void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#else
template <typename T>
void mma_16x8x16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                 unsigned b1);
unsigned shared_address(const void* p);
void ldmatrix(unsigned (&r)[4], unsigned at);
void ldmatrix_transposed(unsigned (&r)[4], unsigned at);
void store_shared(unsigned at, const uint4& v);
void store_shared(unsigned at, unsigned v);
inline void store_shared(unsigned at, float first, float second) {
  store_shared(at, __builtin_bit_cast(unsigned, first));
  store_shared(at + 4, __builtin_bit_cast(unsigned, second));
}
uint4 load_shared(unsigned at);
unsigned load_shared_word(unsigned at);
void cp_async(unsigned to, const void* from, bool exist);
inline void cp_async(unsigned to, const void* from) {
  cp_async(to, from, true);
}
template <typename Address>
Address as_base(Address address) {
  return address;
}
template <int kCount>
void cp_async_words(unsigned to, const void* from, bool exist) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    store_shared(to + i, exist ? *reinterpret_cast<const unsigned*>(
                                     static_cast<const unsigned char*>(from) + i)
                               : 0u);
  }
}
inline void cp_async_evict_first(unsigned to, const void* from, bool exist) {
  cp_async(to, from, exist);
}
inline void cp_async_commit() {}
template <int kPending>
void cp_async_wait() {}
#endif

// Prefetches memory to L2. Does nothing before sm_90, where launches do not overlap and have no
// time for it.
inline void prefetch_l2(const void* from, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// Up to eight elements that are not eight, or do not lie on 16 bytes; the rest is zero.
template <typename T>
uint4 gather_chunk(const T* from, int valid) {
  unsigned words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < valid) words[i / 2] |= static_cast<unsigned>(from[i].bits) << (i % 2 * 16);
  }
  return {words[0], words[1], words[2], words[3]};
}

// Copies a chunk of eight 16-bit elements, of which the first `valid` exist, the rest being zero.
// kWide: the chunk lies on 16 bytes, and all of it exists or none.
template <bool kWide, typename T>
void copy_chunk(unsigned to, const T* from, int64_t valid) {
  if constexpr (kWide) {
    cp_async(to, from, valid > 0);
  } else {
    store_shared(to, gather_chunk(from, static_cast<int>(smaller<int64_t>(valid, 8))));
  }
}

// The same chunk in registers.
template <typename T>
uint4 load_chunk(const T* from, int64_t valid) {
  if (valid >= 8 && is_aligned(from, 16)) return load_once(from);
  if (valid <= 0) return {0, 0, 0, 0};
  return gather_chunk(from, static_cast<int>(smaller<int64_t>(valid, 8)));
}

}  // namespace npusim
