// Atomic operations: threads run one at a time between meeting points, so plain memory serves. Only
// memory_order_relaxed exists, as on most GPUs of Apple.
#pragma once

namespace metal {
enum memory_order { memory_order_relaxed };

template <typename T>
struct atomic {
  T _value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;

#define MSL_FETCH(space, name, expression)                                              \
  template <typename T>                                                                 \
  T atomic_fetch_##name##_explicit(volatile space atomic<T>* to, _msl::same_t<T> value, \
                                   memory_order) {                                      \
    const T old = to->_value;                                                           \
    to->_value = static_cast<T>(expression);                                            \
    return old;                                                                         \
  }
#define MSL_ATOMICS(space)                                                                        \
  MSL_FETCH(space, add, old + value)                                                              \
  MSL_FETCH(space, sub, old - value)                                                              \
  MSL_FETCH(space, and, old& value)                                                               \
  MSL_FETCH(space, or, old | value)                                                               \
  MSL_FETCH(space, xor, old ^ value)                                                              \
  MSL_FETCH(space, min, value < old ? value : old)                                                \
  MSL_FETCH(space, max, old < value ? value : old)                                                \
  template <typename T>                                                                           \
  T atomic_load_explicit(const volatile space atomic<T>* from, memory_order) {                    \
    return from->_value;                                                                          \
  }                                                                                               \
  template <typename T>                                                                           \
  void atomic_store_explicit(volatile space atomic<T>* to, _msl::same_t<T> value, memory_order) { \
    to->_value = value;                                                                           \
  }                                                                                               \
  template <typename T>                                                                           \
  T atomic_exchange_explicit(volatile space atomic<T>* to, _msl::same_t<T> value, memory_order) { \
    const T old = to->_value;                                                                     \
    to->_value = value;                                                                           \
    return old;                                                                                   \
  }                                                                                               \
  template <typename T>                                                                           \
  bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>* to, thread T* expected,    \
                                             _msl::same_t<T> value, memory_order, memory_order) { \
    const T old = to->_value;                                                                     \
    const bool equal = __builtin_memcmp(&old, expected, sizeof(T)) == 0;                          \
    if (equal) {                                                                                  \
      to->_value = value;                                                                         \
    } else {                                                                                      \
      *expected = old;                                                                            \
    }                                                                                             \
    return equal;                                                                                 \
  }
MSL_ATOMICS(device)
#ifdef MSL_STRICT
MSL_ATOMICS(threadgroup)
#endif
#undef MSL_ATOMICS
#undef MSL_FETCH
}  // namespace metal
