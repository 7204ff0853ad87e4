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

// What rounds to an integer of few bits, with others above its lowest byte.
inline IVec low_bytes(Vec v) {
  return reinterpret_cast<IVec>(v + kNoFraction);
}

#if defined(__AVX512VBMI__)
// Where the low bytes of two vectors of integers lie, twice.
struct LowBytes {
  uint8_t at[64] = {};
};
constexpr LowBytes low_bytes_of_two() {
  LowBytes low;
  for (int i = 0; i < 64; ++i) low.at[i] = static_cast<uint8_t>(4 * (i % 32));
  return low;
}
#endif
// The low bytes of several vectors, which lie beside each other.
inline constexpr int kStoredTogether = kLanes == kPanel ? 4 : 1;
inline void store_bytes_together(uint8_t* p, const IVec (&v)[kStoredTogether]) {
#if defined(__AVX512VBMI__)
  static constexpr LowBytes kEach = low_bytes_of_two();
  const __m512i each = _mm512_loadu_si512(kEach.at);
  const __m512i low = _mm512_permutex2var_epi8((__m512i)v[0], each, (__m512i)v[1]);
  const __m512i high = _mm512_permutex2var_epi8((__m512i)v[2], each, (__m512i)v[3]);
  _mm512_storeu_si512(p, _mm512_maskz_shuffle_i64x2(0xFF, low, high, 0x44));
#else
  for (int i = 0; i < kStoredTogether; ++i) store_bytes(p + i * kLanes, v[i]);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// Panel by panel and two rows at a time: conversions round as additions do, and integers are
// shifted and cut to bytes when they are 16 bits wide. Returns the first column that is left.
template <typename Value>
inline int64_t round_panels(int64_t rows, int64_t columns, const ByteRange& range, uint8_t* y,
                            const int64_t* y_rows, const Value value) {
  const auto zero = _mm256_set1_epi16(static_cast<int16_t>(range.zero[0]));
  const Vec lo = range.lo, hi = range.hi;
  const auto words = [=](int64_t r, int64_t c) __attribute__((always_inline)) {
    const auto whole = [=](int64_t at) __attribute__((always_inline)) {
      return _mm256_cvtps_epi32((__m256)clamp(value(r, at), lo, hi));
    };
    const __m256i both = _mm256_packs_epi32(whole(c), whole(c + kLanes));
    return _mm256_and_si256(_mm256_add_epi16(both, zero), _mm256_set1_epi16(0xFF));
  };
  int64_t c = 0;
  for (; c + kPanel <= columns; c += kPanel) {
    for (int64_t r = 0; r < rows; r += 2) {
      const int64_t next = std::min(r + 1, rows - 1);
      const __m256i bytes = _mm256_packus_epi16(words(r, c), words(next, c));
      const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, order);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + y_rows[r] + c),
                       _mm256_castsi256_si128(ordered));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + y_rows[next] + c),
                       _mm256_extracti128_si256(ordered, 1));
    }
  }
  return c;
}
#endif

// y[y_rows[r]] = value(r, c) of each row, in steps of y: rounded, as bytes. Columns and sums are
// taken by value: stores of bytes could change what a reference shows.
template <typename Value>
inline void round_rows(int64_t rows, int64_t columns, const ByteRange range, uint8_t* y,
                       const int64_t* y_rows, const Value value) {
  constexpr int64_t kTogether = kStoredTogether * kLanes;
  const auto byte = [&](int64_t r, int64_t c) __attribute__((always_inline)) {
    return wrapping_sum(low_bytes(clamp(value(r, c), range.lo, range.hi)), range.zero);
  };
  int64_t first = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
  first = round_panels(rows, columns, range, y, y_rows, value);
  if (first == columns) return;
#endif
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t* to = y + y_rows[r];
    int64_t c = first;
    for (; c + kTogether <= columns; c += kTogether) {
      IVec bytes[kStoredTogether];
      for (int v = 0; v < kStoredTogether; ++v) bytes[v] = byte(r, c + v * kLanes);
      store_bytes_together(to + c, bytes);
    }
    for (; c < columns; c += kLanes) {
      const int64_t n = columns - c;
      const IVec bytes = byte(r, c);
      n >= kLanes ? store_bytes(to + c, bytes) : store_bytes_part(to + c, bytes, n);
    }
  }
}

inline void finish_bytes(const Int8Sums s, const Int8Columns by, const ByteRange range, bool biased,
                         uint8_t* y, const int64_t* y_rows) {
  if (!by.has_w_zero && !biased) {
    return round_rows(s.rows, s.columns, range, y, y_rows, [=](int64_t r, int64_t c) {
      const IVec sum = load(s.at + r * kSumsStride + c);
      return __builtin_convertvector(sum, Vec) * load(by.scale + c);
    });
  }
  round_rows(s.rows, s.columns, range, y, y_rows, [=](int64_t r, int64_t c) {
    const Vec v = scaled_sum(s, by, r, c);
    return biased ? v + load(by.bias + c) : v;
  });
}

// The same, with bytes of a residual added in steps of y; `flip` of those that are signed.
inline void finish_bytes_added(const Int8Sums s, const Int8Columns by, const ByteRange range,
                               bool biased, const float* terms, const uint8_t* residual,
                               uint8_t flip, const int64_t* r_rows, uint8_t* y,
                               const int64_t* y_rows) {
  // Beyond this there is no byte, and rounding needs numbers that are not larger.
  const Vec limit = broadcast(0x1p21F);
  const Vec lo = clamp(broadcast(terms[0]), -limit, limit);
  const Vec hi = clamp(broadcast(terms[1]), -limit, limit);
  const Vec own = broadcast(terms[2]), other = broadcast(terms[3]), rest = broadcast(terms[4]);
  const Vec zero = __builtin_convertvector(range.zero, Vec);
  const ByteRange whole{range.lo + zero, range.hi + zero, IVec{}};
  const IVec sign = IVec{} + flip;
  round_rows(s.rows, s.columns, whole, y, y_rows, [=](int64_t r, int64_t c) {
    const int64_t n = s.columns - c;
    Vec v = scaled_sum(s, by, r, c);
    if (biased) v += load(by.bias + c);
    v = round_small(clamp(v, lo, hi));
    const uint8_t* from = residual + r_rows[r] + c;
    const IVec bytes = ((n >= kLanes ? load_bytes(from) : load_bytes_part(from, n)) ^ sign) - sign;
    return v * own + __builtin_convertvector(bytes, Vec) * other + rest;
  });
}

// The same, with an activation over sums that are scaled, which `inverse` makes steps of y.
inline void finish_bytes_activated(const Int8Sums& s, const Int8Columns& by, const ByteRange range,
                                   bool biased, const Output& out, float inverse, uint8_t* y,
                                   const int64_t* y_rows) {
  const int64_t width = (s.columns + kLanes - 1) / kLanes * kLanes;
  auto* values = reinterpret_cast<float*>(s.at);  // rows end to end, which lie before what is read
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t c = 0; c < width; c += kLanes) {
      Vec v = scaled_sum(s, by, r, c);
      if (biased) v += load(by.bias + c);
      store(s.at + r * width + c, reinterpret_cast<IVec>(v));
    }
  }
  activate(out, values, s.rows * width);
  const int32_t* at = s.at;
  const Vec steps = broadcast(inverse);
  round_rows(s.rows, s.columns, range, y, y_rows, [=](int64_t r, int64_t c) {
    return reinterpret_cast<Vec>(load(at + r * width + c)) * steps;
  });
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

// The sums scaled, biased and, where there is one, with a residual: all that follows most products
// whose results are floats. Columns are whole vectors.
template <typename Y>
inline void finish_floats(const Int8Sums s, const Int8Columns by, bool biased,
                          const float* residual, const int64_t* r_rows, Y* y,
                          const int64_t* y_rows) {
  for (int64_t r = 0; r < s.rows; ++r) {
    Y* to = y + y_rows[r];
    const float* from = residual ? residual + r_rows[r] : nullptr;
    for (int64_t c = 0; c < s.columns; c += kLanes) {
      Vec v = scaled_sum(s, by, r, c);
      if (biased) v += load(by.bias + c);
      if (from) v += load(from + c);
      store(to + c, v);
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
