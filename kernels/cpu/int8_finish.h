// What follows the sums of products of bytes: zero points and biases, then the sums themselves,
// floats with any epilogue, or bytes again.
#pragma once

#include <limits>

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/int8_panels.h"

namespace npusim::cpu::NPUSIM_ISA {

// Where the optional operands of `conv_int8` are; nullptr for one that is absent.
struct Int8Operands {
  const void *x_zero = nullptr, *w_zeros = nullptr, *residual = nullptr, *y_zero = nullptr;
  const float *scale = nullptr, *bias = nullptr, *terms = nullptr;
  const int32_t* sum_bias = nullptr;
  void* y = nullptr;
};

inline int32_t decode_byte(int32_t dtype, const void* p, int64_t at) {
  return is_signed_byte(dtype) ? static_cast<const int8_t*>(p)[at]
                               : static_cast<const uint8_t*>(p)[at];
}

// What each column of some panels needs, in whole vectors: offset + sum of the products,
// - weight zero * sum of x, * scale, + bias; or by integers, * multiplier / 2^shift.
struct Int8Columns {
  int32_t *offset, *w_zero, *multiplier, *shift;
  float *scale, *bias;
  bool has_w_zero = false;  // one that is not 0

  template <typename Arena>
  Int8Columns(Arena& arena, int64_t columns, bool by_integers)
      : offset(arena.template take<int32_t>(columns)),
        w_zero(arena.template take<int32_t>(columns)),
        multiplier(arena.template take<int32_t>(by_integers ? columns : 0)),
        shift(arena.template take<int32_t>(by_integers ? columns : 0)),
        scale(arena.template take<float>(columns)),
        bias(arena.template take<float>(columns)) {}
};

inline bool makes_bytes(int32_t y_dtype) {
  return is_byte(y_dtype);
}
inline bool makes_sums(int32_t y_dtype) {
  return y_dtype == static_cast<int32_t>(abi::DType::kInt32);
}

// Sums become bytes: clamped so that what is rounded fits, and shifted by the zero point.
struct ByteRange {
  Vec lo, hi;
  IVec zero;
};

inline ByteRange byte_range(int32_t y_dtype, int32_t zero, bool relu) {
  const bool is_signed = is_signed_byte(y_dtype);
  const int32_t low = (is_signed ? -128 : 0) - zero, high = (is_signed ? 127 : 255) - zero;
  return {broadcast(static_cast<float>(relu ? std::max(low, 0) : low)),
          broadcast(static_cast<float>(high)), IVec{} + zero};
}

// Rows of sums, `kSumsStride` apart, of `columns` columns from the first of `by`.
struct Int8Sums {
  int32_t* at;
  int64_t rows, columns;
  const int32_t* x_sums;  // of each row, where weights have zero points
};

// Sums wrap, which unsigned lanes do by definition.
inline IVec whole_sum(const Int8Sums& s, const Int8Columns& by, int64_t r, int64_t c) {
  const IVec sum = load(s.at + r * kSumsStride + c);
  if (!by.has_w_zero) return sum;
  const UVec zero = reinterpret_cast<UVec>(load(by.w_zero + c));
  const UVec shift = zero * (UVec{} + static_cast<uint32_t>(s.x_sums[r]));
  return reinterpret_cast<IVec>(reinterpret_cast<UVec>(sum) - shift);
}
inline Vec scaled_sum(const Int8Sums& s, const Int8Columns& by, int64_t r, int64_t c) {
  return __builtin_convertvector(whole_sum(s, by, r, c), Vec) * load(by.scale + c);
}

template <typename Y>
inline void store_some_bytes(Y* y, IVec v, int64_t n) {
  n >= kLanes ? store_bytes(y, v) : store_bytes_part(y, v, n);
}

// What rounds to an integer of few bits, with others above its lowest byte.
inline IVec low_bytes(Vec v) {
  return reinterpret_cast<IVec>(v + kNoFraction);
}

// Columns and sums are taken by value: stores of bytes could change what a reference shows.
//
// y[y_rows[r]] = sums as bytes.
template <typename Y>
void finish_bytes(const Int8Sums s, const Int8Columns by, const ByteRange range, bool biased, Y* y,
                  const int64_t* y_rows) {
  for (int64_t r = 0; r < s.rows; ++r) {
    Y* to = y + y_rows[r];
    for (int64_t c = 0; c < s.columns; c += kLanes) {
      Vec v = scaled_sum(s, by, r, c);
      if (biased) v += load(by.bias + c);
      v = clamp(v, range.lo, range.hi);
      store_some_bytes(to + c, round_to_integers(v) + range.zero, s.columns - c);
    }
  }
}

// The same, with bytes of a residual added in steps of y.
template <typename Y, typename R>
void finish_bytes_added(const Int8Sums s, const Int8Columns by, const ByteRange range, bool biased,
                        const float* terms, const R* residual, const int64_t* r_rows, Y* y,
                        const int64_t* y_rows) {
  // Beyond this there is no byte, and rounding needs numbers that are not larger.
  const Vec limit = broadcast(0x1p21F);
  const Vec lo = clamp(broadcast(terms[0]), -limit, limit);
  const Vec hi = clamp(broadcast(terms[1]), -limit, limit);
  const Vec own = broadcast(terms[2]), other = broadcast(terms[3]), rest = broadcast(terms[4]);
  const Vec zero = __builtin_convertvector(range.zero, Vec);
  const Vec low = range.lo + zero, high = range.hi + zero;
  for (int64_t r = 0; r < s.rows; ++r) {
    const R* from = residual + r_rows[r];
    Y* to = y + y_rows[r];
    for (int64_t c = 0; c < s.columns; c += kLanes) {
      const int64_t n = s.columns - c;
      Vec v = scaled_sum(s, by, r, c);
      if (biased) v += load(by.bias + c);
      v = round_small(clamp(v, lo, hi));
      const IVec bytes = n >= kLanes ? load_bytes(from + c) : load_bytes_part(from + c, n);
      v = v * own + __builtin_convertvector(bytes, Vec) * other + rest;
      store_some_bytes(to + c, low_bytes(clamp(v, low, high)), n);
    }
  }
}

inline void finish_sums(const Int8Sums& s, const Int8Columns& by, int32_t* y,
                        const int64_t* y_rows) {
  for (int64_t r = 0; r < s.rows; ++r) {
    int32_t* to = y + y_rows[r];
    for (int64_t c = 0; c < s.columns; c += kLanes) {
      const IVec sum = whole_sum(s, by, r, c);
      if (c + kLanes <= s.columns) {
        store(to + c, sum);
      } else {
        int32_t lanes[kLanes];
        store(lanes, sum);
        std::copy_n(lanes, s.columns - c, to + c);
      }
    }
  }
}

// The sums as floats, in their own place: what the epilogue of any GEMM goes on from.
inline float* scale_sums(const Int8Sums& s, const Int8Columns& by) {
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t c = 0; c < s.columns; c += kLanes) {
      store(s.at + r * kSumsStride + c, reinterpret_cast<IVec>(scaled_sum(s, by, r, c)));
    }
  }
  return reinterpret_cast<float*>(s.at);
}

}  // namespace npusim::cpu::NPUSIM_ISA
