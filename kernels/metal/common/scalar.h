// Elements as Metal kernels see them: storage types, the two compute classes of abi/scalar.py that
// Metal has (float, int64_t), conversions between both, packs of neighbours, and the flag through
// which a kernel reports what only running reveals. C++14: what CUDA's header tells apart by
// `if constexpr` are specialisations here.
#pragma once

// Address spaces: a GPU's memory, constants, a thread's variables.
#define NPUSIM_GLOBAL device
#define NPUSIM_CONSTANT constant
#define NPUSIM_THREAD thread

namespace npusim {

template <int kDType>
struct StorageOf;
template <>
struct StorageOf<0> {
  typedef float type;
};
template <>
struct StorageOf<1> {
  typedef half type;
};
#if __METAL_VERSION__ >= 310
template <>
struct StorageOf<2> {
  typedef bfloat type;
};
#endif
template <>
struct StorageOf<4> {
  typedef int64_t type;
};
template <>
struct StorageOf<5> {
  typedef int32_t type;
};
template <>
struct StorageOf<6> {
  typedef int16_t type;
};
template <>
struct StorageOf<7> {
  typedef int8_t type;
};
template <>
struct StorageOf<8> {
  typedef uint8_t type;
};
template <>
struct StorageOf<9> {
  typedef bool type;
};
// The type of a dtype code.
template <int kDType>
using Storage = typename StorageOf<kDType>::type;

template <bool kReal>
struct ClassOf {
  typedef float type;
};
template <>
struct ClassOf<false> {
  typedef int64_t type;
};
// What elements of a dtype compute in.
template <int kDType>
using Compute = typename ClassOf<(kDType < 3)>::type;

// Unsigned integers of an element's size.
template <int kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  typedef uint8_t type;
};
template <>
struct BitsOf<2> {
  typedef uint16_t type;
};
template <>
struct BitsOf<4> {
  typedef uint32_t type;
};
template <>
struct BitsOf<8> {
  typedef uint64_t type;
};

constant constexpr int64_t kSmallest = -9223372036854775807L - 1L;
constant constexpr int32_t kSmallest32 = -2147483647 - 1;
constant constexpr int64_t kLargest = 9223372036854775807L;

template <typename C>
struct Largest {
  static C value() { return INFINITY; }
};
template <>
struct Largest<int64_t> {
  static int64_t value() { return kLargest; }
};
// Above all other numbers of a class.
template <typename C>
inline C infinity() {
  return Largest<C>::value();
}

// Truncates toward zero. What does not fit (NaN too) becomes the smallest integer, as on the CPU.
inline int64_t to_integer(float x) {
  return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? static_cast<int64_t>(x)
                                                                    : kSmallest;
}
// The same for int32, whose low bits the narrower signed dtypes take.
inline int32_t to_integer32(float x) {
  return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(x) : kSmallest32;
}

template <typename C, typename T>
struct Decoded {
  static C of(T x) { return static_cast<C>(x); }
};
template <>
struct Decoded<int64_t, float> {
  static int64_t of(float x) { return to_integer(x); }
};
template <>
struct Decoded<int64_t, half> {
  static int64_t of(half x) { return to_integer(static_cast<float>(x)); }
};
#if __METAL_VERSION__ >= 310
template <>
struct Decoded<int64_t, bfloat> {
  static int64_t of(bfloat x) { return to_integer(static_cast<float>(x)); }
};
#endif
// One stored element as a number of class C.
template <typename C, typename T>
inline C decode(T x) {
  return Decoded<C, T>::of(x);
}

// From a float to integers: uint8 goes by way of int64, as on the CPU.
template <typename T, typename C>
struct Encoded {
  static T of(C x) { return static_cast<T>(to_integer32(x)); }
};
template <typename T>
struct Encoded<T, int64_t> {
  static T of(int64_t x) { return static_cast<T>(x); }
};
template <>
struct Encoded<int64_t, float> {
  static int64_t of(float x) { return to_integer(x); }
};
template <>
struct Encoded<uint8_t, float> {
  static uint8_t of(float x) { return static_cast<uint8_t>(to_integer(x)); }
};
template <>
struct Encoded<float, float> {
  static float of(float x) { return x; }
};
template <>
struct Encoded<half, float> {
  static half of(float x) { return static_cast<half>(x); }
};
template <>
struct Encoded<half, int64_t> {
  static half of(int64_t x) { return static_cast<half>(static_cast<float>(x)); }
};
#if __METAL_VERSION__ >= 310
template <>
struct Encoded<bfloat, float> {
  static bfloat of(float x) { return static_cast<bfloat>(x); }
};
template <>
struct Encoded<bfloat, int64_t> {
  static bfloat of(int64_t x) { return static_cast<bfloat>(static_cast<float>(x)); }
};
#endif
template <>
struct Encoded<bool, float> {
  static bool of(float x) { return x != 0; }
};
template <>
struct Encoded<bool, int64_t> {
  static bool of(int64_t x) { return x != 0; }
};
// The inverse: one number of class C as stored in T.
template <typename T, typename C>
inline T encode(C x) {
  return Encoded<T, C>::of(x);
}

// The number, where one of both is NaN; and to the nearest integer, of two the even one.
inline float lesser_number(float a, float b) {
  return metal::precise::fmin(a, b);
}
inline float larger_number(float a, float b) {
  return metal::precise::fmax(a, b);
}
inline float rounded(float x) {
  return metal::precise::rint(x);
}
inline unsigned float_bits(float x) {
  return as_type<unsigned>(x);
}
inline float float_of_bits(unsigned bits) {
  return as_type<float>(bits);
}
inline float magnitude(float x) {
  return metal::precise::fabs(x);
}

// kCount neighbours. Metal's compiler joins their accesses where it knows the alignment.
template <typename T, int kCount>
struct Pack {
  T at[kCount];
};
template <int kCount, typename T>
inline bool is_packed(device const T* p) {
  return true;
}
template <int kCount, typename T>
inline Pack<T, kCount> load_pack(device const T* p) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) pack.at[i] = p[i];
  return pack;
}
template <int kCount, typename T>
inline void store_pack(device T* p, thread const Pack<T, kCount>& pack) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) p[i] = pack.at[i];
}

// What the runtime reads after a run: the first thread that reports wins.
struct Failure {
  metal::atomic_int code;
  int32_t pad;
  int64_t value;
  int64_t limit;
};
enum FailureCode : int32_t { kOutOfRange = 1, kDivisionByZero = 2 };

inline void report(device Failure* failure, FailureCode code, int64_t value, int64_t limit) {
  int32_t expected = 0;
  while (!metal::atomic_compare_exchange_weak_explicit(
      &failure->code, &expected, static_cast<int32_t>(code), metal::memory_order_relaxed,
      metal::memory_order_relaxed)) {
    if (expected != 0) return;
  }
  failure->value = value;
  failure->limit = limit;
}

}  // namespace npusim
