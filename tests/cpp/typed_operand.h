// Operands of every dtype of abi.h, for the tests of kernels that take them all: random values,
// reading them back as numbers, and what an exact result becomes when it is stored.
#pragma once

#include "tests/cpp/kernel_call.h"

namespace npusim::cpu {

// Calls f with a value of the C++ type of a dtype that has one (not the 16-bit floats).
template <typename F>
auto with_plain_type(int32_t dtype, F&& f) {
  switch (static_cast<abi::DType>(dtype)) {
    case abi::DType::kFloat64:
      return f(double{});
    case abi::DType::kInt64:
      return f(int64_t{});
    case abi::DType::kInt32:
      return f(int32_t{});
    case abi::DType::kInt16:
      return f(int16_t{});
    case abi::DType::kInt8:
      return f(int8_t{});
    default:
      return f(uint8_t{});
  }
}

inline int64_t size_of_dtype(int32_t dtype) {
  if (dtype <= 2) return dtype_bytes(dtype);
  return with_plain_type(dtype, [](auto x) { return static_cast<int64_t>(sizeof x); });
}

// Small whole numbers (0 and 1 for bool), quarters for floats: exact in every dtype.
inline Operand typed_operand(int32_t dtype, int64_t elements, std::mt19937& random) {
  if (dtype <= 2) return random_operand(dtype, elements, random);
  Operand out;
  with_plain_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    out.bytes.resize(static_cast<size_t>(elements) * sizeof(T));
    for (int64_t i = 0; i < elements; ++i) {
      const auto whole = static_cast<int>(random() % 21) - 10;
      T x = static_cast<T>(whole);
      if constexpr (std::is_same_v<T, double>) x /= 4;
      if (dtype == 9) x = static_cast<T>(whole > 0);
      std::memcpy(out.bytes.data() + static_cast<size_t>(i) * sizeof(T), &x, sizeof(T));
    }
  });
  return out;
}

inline std::vector<double> numbers_of(const Operand& operand, int32_t dtype) {
  if (dtype <= 2) return values_of(operand, dtype);
  return with_plain_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<double> out(operand.bytes.size() / sizeof(T));
    for (size_t i = 0; i < out.size(); ++i) {
      T x;
      std::memcpy(&x, operand.bytes.data() + i * sizeof(T), sizeof(T));
      out[i] = static_cast<double>(x);
    }
    return out;
  });
}

// An exact result as an integer dtype or bool holds it; float64 as it is.
inline double wrap(double x, int32_t dtype) {
  if (dtype == 9) return x != 0;
  if (dtype == 3) return x;
  return with_plain_type(dtype, [x](auto zero) {
    return static_cast<double>(static_cast<decltype(zero)>(static_cast<int64_t>(x)));
  });
}

}  // namespace npusim::cpu
