#include "cpp/runtime/convert.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace npusim {
namespace {

// Storage of 16 bits, written out: not every compiler has these types everywhere.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

double widen(float x) {
  return x;
}
double widen(double x) {
  return x;
}
double widen(Brain x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
double widen(Half x) {
  const int exponent = (x.bits >> 10) & 0x1F, fraction = x.bits & 0x3FF;
  double value = 0;
  if (exponent == 0x1F) {
    value = fraction == 0 ? HUGE_VAL : std::nan("");
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(fraction | 0x400, exponent - 25);
  }
  return (x.bits & 0x8000) ? -value : value;
}

// Rounds a double to a float of `exponent_bits` and `fraction_bits`, in one rounding.
uint16_t narrow_bits(double x, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int infinity = ((1 << exponent_bits) - 1) << fraction_bits;
  const int sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return static_cast<uint16_t>(sign | infinity | (1 << (fraction_bits - 1)));
  const double magnitude = std::fabs(x);
  if (std::isinf(x)) return static_cast<uint16_t>(sign | infinity);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  // The unit of the last place: that of the value's binade, or of the subnormals.
  const int unit = std::max(std::ilogb(magnitude), 1 - bias) - fraction_bits;
  const double units = std::nearbyint(std::ldexp(magnitude, -unit));
  // A carry out of the fraction steps into the next binade by itself, up to infinity.
  const double biased = std::ldexp(unit + fraction_bits + bias - 1, fraction_bits) + units;
  return static_cast<uint16_t>(sign | static_cast<int>(std::min<double>(biased, infinity)));
}

template <typename T>
T narrow(double x);
template <>
float narrow<float>(double x) {
  return static_cast<float>(x);
}
template <>
double narrow<double>(double x) {
  return x;
}
template <>
Half narrow<Half>(double x) {
  return {narrow_bits(x, 5, 10)};
}
template <>
Brain narrow<Brain>(double x) {
  return {narrow_bits(x, 8, 7)};
}

template <typename F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16:
      return f(Half{});
    case DType::kBfloat16:
      return f(Brain{});
    case DType::kFloat64:
      return f(double{});
    default:
      return f(float{});
  }
}

template <typename T>
T element(std::span<const std::byte> values, size_t index) {
  T out;
  std::memcpy(&out, values.data() + index * sizeof(T), sizeof(T));
  return out;
}

}  // namespace

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16 ||
         dtype == DType::kFloat64;
}

void convert_floats(std::span<const std::byte> from, DType from_dtype, std::span<std::byte> to,
                    DType to_dtype) {
  if (from_dtype == to_dtype) {
    std::copy(from.begin(), from.end(), to.begin());
    return;
  }
  with_type(from_dtype, [&](auto source) {
    with_type(to_dtype, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      for (size_t i = 0; i < from.size() / sizeof(From); ++i) {
        const To value = narrow<To>(widen(element<From>(from, i)));
        std::memcpy(to.data() + i * sizeof(To), &value, sizeof value);
      }
    });
  });
}

int64_t first_nan(std::span<const std::byte> values, DType dtype) {
  int64_t found = -1;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < values.size() / sizeof(T); ++i) {
      if (std::isnan(widen(element<T>(values, i)))) {
        found = static_cast<int64_t>(i);
        return;
      }
    }
  });
  return found;
}

}  // namespace npusim
