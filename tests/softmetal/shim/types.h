// Address spaces, scalar and vector types, as_type and the vector constructors.
#pragma once
#include "tests/softmetal/engine/abi.h"

#define kernel
#define thread
#ifdef MSL_STRICT
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif

typedef _Float16 half;
typedef __bf16 bfloat;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;

namespace metal {
template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));

template <bool B, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool B, typename T = void>
using enable_if_t = typename enable_if<B, T>::type;
template <bool B, typename T, typename F>
struct conditional {
  typedef T type;
};
template <typename T, typename F>
struct conditional<false, T, F> {
  typedef F type;
};
template <bool B, typename T, typename F>
using conditional_t = typename conditional<B, T, F>::type;
template <typename T, typename U>
struct is_same {
  static constexpr bool value = false;
};
template <typename T>
struct is_same<T, T> {
  static constexpr bool value = true;
};
template <typename T, typename U>
constexpr bool is_same_v = is_same<T, U>::value;
template <typename T>
constexpr bool is_floating_point_v =
    is_same_v<T, float> || is_same_v<T, half> || is_same_v<T, bfloat>;
template <typename T>
constexpr bool is_integral_v = __is_integral(T);
}  // namespace metal

#define MSL_VECTORS(T)                                \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
MSL_VECTORS(char)
MSL_VECTORS(uchar)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(long)
MSL_VECTORS(ulong)
MSL_VECTORS(half)
MSL_VECTORS(bfloat)
MSL_VECTORS(float)
MSL_VECTORS(bool)
#undef MSL_VECTORS

namespace _msl {
using metal::vec;

// Keeps a parameter out of the deduction of T.
template <typename T>
struct same {
  typedef T type;
};
template <typename T>
using same_t = typename same<T>::type;

template <typename V>
struct shape {
  typedef V scalar;
  static constexpr int size = 1;
};
template <typename T, int N>
struct shape<T __attribute__((ext_vector_type(N)))> {
  typedef T scalar;
  static constexpr int size = N;
};

template <typename V, typename A>
void put(V& to, int& at, A value) {
  typedef typename shape<V>::scalar T;
  if constexpr (shape<A>::size == 1) {
    to[at++] = static_cast<T>(value);
  } else {
    for (int i = 0; i < shape<A>::size; ++i) to[at++] = static_cast<T>(value[i]);
  }
}

// float4(…) as MSL has it: one scalar for all elements, or scalars and vectors that fill them.
template <typename V, typename... A>
V make(A... values) {
  typedef typename shape<V>::scalar T;
  constexpr int given = (0 + ... + shape<A>::size);
  V result = {};
  if constexpr (shape<V>::size == 1) {
    static_assert(sizeof...(A) == 1 && given == 1, "a scalar is made from one scalar");
    result = (static_cast<V>(values), ...);
  } else if constexpr (given == 1) {
    T value = (static_cast<T>(values), ...);
    for (int i = 0; i < shape<V>::size; ++i) result[i] = value;
  } else {
    static_assert(given == shape<V>::size,
                  "a vector is made from one scalar, or from as many elements as it has");
    int at = 0;
    (put(result, at, values), ...);
  }
  return result;
}

template <typename V>
V make() {
  return V{};
}
}  // namespace _msl

template <typename To, typename From>
constexpr To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  return __builtin_bit_cast(To, from);
}
