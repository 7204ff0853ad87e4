// Functions of integer scalars, and select.
#pragma once

namespace metal {
#define MSL_INTEGER(T, U)                                                                   \
  inline T min(T x, T y) {                                                                  \
    return y < x ? y : x;                                                                   \
  }                                                                                         \
  inline T max(T x, T y) {                                                                  \
    return x < y ? y : x;                                                                   \
  }                                                                                         \
  inline T clamp(T x, T low, T high) {                                                      \
    return min(max(x, low), high);                                                          \
  }                                                                                         \
  inline T popcount(T x) {                                                                  \
    return static_cast<T>(__builtin_popcountl(static_cast<U>(x)));                          \
  }                                                                                         \
  inline T clz(T x) {                                                                       \
    return static_cast<U>(x) == 0 ? static_cast<T>(sizeof(T) * 8)                           \
                                  : static_cast<T>(__builtin_clzl(static_cast<U>(x)) -      \
                                                   (64 - static_cast<int>(sizeof(T)) * 8)); \
  }                                                                                         \
  inline T ctz(T x) {                                                                       \
    return static_cast<U>(x) == 0 ? static_cast<T>(sizeof(T) * 8)                           \
                                  : static_cast<T>(__builtin_ctzl(static_cast<U>(x)));      \
  }                                                                                         \
  inline T rotate(T x, T by) {                                                              \
    const unsigned bits = sizeof(T) * 8, n = static_cast<unsigned>(by) % bits;              \
    const U u = static_cast<U>(x);                                                          \
    return static_cast<T>(n == 0 ? u : static_cast<U>((u << n) | (u >> (bits - n))));       \
  }                                                                                         \
  inline T select(T if_false, T if_true, bool which) {                                      \
    return which ? if_true : if_false;                                                      \
  }
MSL_INTEGER(char, uchar)
MSL_INTEGER(uchar, uchar)
MSL_INTEGER(short, ushort)
MSL_INTEGER(ushort, ushort)
MSL_INTEGER(int, uint)
MSL_INTEGER(uint, uint)
MSL_INTEGER(long, ulong)
MSL_INTEGER(ulong, ulong)
#undef MSL_INTEGER

inline int abs(int x) {
  return static_cast<int>(x < 0 ? 0u - static_cast<uint>(x) : static_cast<uint>(x));
}
inline long abs(long x) {
  return static_cast<long>(x < 0 ? 0ul - static_cast<ulong>(x) : static_cast<ulong>(x));
}
inline int mulhi(int x, int y) {
  return static_cast<int>((static_cast<long>(x) * y) >> 32);
}
inline uint mulhi(uint x, uint y) {
  return static_cast<uint>((static_cast<ulong>(x) * y) >> 32);
}
inline long mulhi(long x, long y) {
  return static_cast<long>((static_cast<__int128>(x) * y) >> 64);
}
inline ulong mulhi(ulong x, ulong y) {
  return static_cast<ulong>((static_cast<unsigned __int128>(x) * y) >> 64);
}
inline uint reverse_bits(uint x) {
  return __builtin_bitreverse32(x);
}

inline float select(float if_false, float if_true, bool which) {
  return which ? if_true : if_false;
}
inline half select(half if_false, half if_true, bool which) {
  return which ? if_true : if_false;
}
inline bfloat select(bfloat if_false, bfloat if_true, bool which) {
  return which ? if_true : if_false;
}
}  // namespace metal
