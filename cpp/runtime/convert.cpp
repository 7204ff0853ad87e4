#include "cpp/runtime/convert.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

// Storage of 16 bits, written out: not every compiler has these types everywhere.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

float widen(float x) {
  return x;
}
double widen(double x) {
  return x;
}
float widen(Brain x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}
// The exponent's bias is a product with a power of two, which makes subnormals normal as well.
float widen(Half x) {
  const uint32_t magnitude = uint32_t{x.bits} & 0x7FFF, sign = uint32_t{x.bits} >> 15 << 31;
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const float endless = std::bit_cast<float>(magnitude << 13 | 0x7F800000);  // also NaN
  const float value = magnitude >= 0x7C00 ? endless : scaled;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
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
T element(const std::byte* at) {
  T out;
  std::memcpy(&out, at, sizeof(T));
  return out;
}

}  // namespace

bool is_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16 ||
         dtype == DType::kFloat64;
}

void convert_floats(std::span<const std::byte> from, DType from_dtype, std::span<std::byte> to,
                    DType to_dtype) {
  const auto from_size = static_cast<size_t>(dtype_size(from_dtype));
  const auto to_size = static_cast<size_t>(dtype_size(to_dtype));
  if (from.size() % from_size != 0 || to.size() != from.size() / from_size * to_size) {
    throw Error(ErrorCode::kInput, std::to_string(from.size()) + " bytes of " +
                                       std::string(dtype_name(from_dtype)) + " do not become " +
                                       std::to_string(to.size()) + " bytes of " +
                                       std::string(dtype_name(to_dtype)));
  }
  if (from_dtype == to_dtype) {
    std::copy(from.begin(), from.end(), to.begin());
    return;
  }
  with_type(from_dtype, [&](auto source) {
    with_type(to_dtype, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      const std::byte* in = from.data();
      std::byte* out = to.data();
      for (size_t i = 0, count = from.size() / sizeof(From); i < count; ++i) {
        const To value = narrow<To>(widen(element<From>(in + i * sizeof(From))));
        std::memcpy(out + i * sizeof(To), &value, sizeof value);
      }
    });
  });
}

int64_t first_nan(std::span<const std::byte> values, DType dtype) {
  int64_t found = -1;
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < values.size() / sizeof(T); ++i) {
      if (std::isnan(widen(element<T>(values.data() + i * sizeof(T))))) {
        found = static_cast<int64_t>(i);
        return;
      }
    }
  });
  return found;
}

}  // namespace npusim
