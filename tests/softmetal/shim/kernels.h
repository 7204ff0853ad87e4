// What the rewriter's text leans on: built-in arguments, threadgroup variables, function constants.
#pragma once

namespace _msl {
template <typename V, unsigned Size>
V builtin(const unsigned (&values)[Size]) {
  V result = {};
  if constexpr (shape<V>::size == 1) {
    result = static_cast<V>(values[0]);
  } else {
    for (int i = 0; i < shape<V>::size; ++i) {
      result[i] = static_cast<typename shape<V>::scalar>(values[i]);
    }
  }
  return result;
}
template <typename V>
V builtin(unsigned value) {
  static_assert(shape<V>::size == 1, "this built-in argument is a scalar");
  return static_cast<V>(value);
}

template <typename T>
struct pointee;
template <typename T>
struct pointee<T*> {
  typedef T type;
};
template <typename T>
struct pointee<T&> {
  typedef T type;
};
template <typename T>
struct is_const {
  static constexpr bool value = false;
};
template <typename T>
struct is_const<const T> {
  static constexpr bool value = true;
};

template <typename P>
struct argument;
template <typename T>
struct argument<T*> {
  static T* from(void* address) { return static_cast<T*>(address); }
};
template <typename T>
struct argument<T&> {
  static T& from(void* address) { return *static_cast<T*>(address); }
};

// What a buffer holds at least: one of what is pointed to, of void a byte.
template <typename T>
struct layout {
  static constexpr unsigned size = sizeof(T), alignment = alignof(T);
};
template <>
struct layout<void> {
  static constexpr unsigned size = 1, alignment = 1;
};
template <>
struct layout<const void> : layout<void> {};

template <typename P>
constexpr softmetal::Binding binding(const char* name, softmetal::Space space, unsigned index) {
  typedef typename pointee<P>::type T;
  return {name, space, index, layout<T>::size, layout<T>::alignment, !is_const<T>::value};
}
}  // namespace _msl
