// numeric_limits.
#pragma once

namespace metal {
template <typename T>
struct numeric_limits;

#define MSL_INTEGER_LIMITS(T, least, greatest)    \
  template <>                                     \
  struct numeric_limits<T> {                      \
    static constexpr T min() { return least; }    \
    static constexpr T lowest() { return least; } \
    static constexpr T max() { return greatest; } \
  };
MSL_INTEGER_LIMITS(char, -128, 127)
MSL_INTEGER_LIMITS(uchar, 0, 255)
MSL_INTEGER_LIMITS(short, -32768, 32767)
MSL_INTEGER_LIMITS(ushort, 0, 65535)
MSL_INTEGER_LIMITS(int, -2147483647 - 1, 2147483647)
MSL_INTEGER_LIMITS(uint, 0, 4294967295u)
MSL_INTEGER_LIMITS(long, -9223372036854775807l - 1, 9223372036854775807l)
MSL_INTEGER_LIMITS(ulong, 0, 18446744073709551615ul)
#undef MSL_INTEGER_LIMITS

#define MSL_FLOAT_LIMITS(T, least, greatest, eps)                                 \
  template <>                                                                     \
  struct numeric_limits<T> {                                                      \
    static constexpr T min() { return static_cast<T>(least); }                    \
    static constexpr T lowest() { return -static_cast<T>(greatest); }             \
    static constexpr T max() { return static_cast<T>(greatest); }                 \
    static constexpr T epsilon() { return static_cast<T>(eps); }                  \
    static constexpr T infinity() { return static_cast<T>(__builtin_inff()); }    \
    static constexpr T quiet_NaN() { return static_cast<T>(__builtin_nanf("")); } \
  };
MSL_FLOAT_LIMITS(float, 0x1p-126f, 0x1.fffffep127f, 0x1p-23f)
MSL_FLOAT_LIMITS(half, 0x1p-14f, 65504.0f, 0x1p-10f)
MSL_FLOAT_LIMITS(bfloat, 0x1p-126f, 0x1.fep127f, 0x1p-7f)
#undef MSL_FLOAT_LIMITS
}  // namespace metal
