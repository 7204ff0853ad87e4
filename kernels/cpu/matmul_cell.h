// The matmul of one block of y, for operands that exist only at run time, with any strides: what
// `matmul` cuts a command into, and `grouped_matmul` each group's rows.
// float32 operands are multiplied where they lie when their strides allow; otherwise, and for
// 16-bit storage, blocks become rows of float in scratch first. float64 and integers take a plain
// blocked loop.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/dot_rows.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/scratch.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kMatmulRows = 192, kMatmulColumns = 256, kMatmulDepth = 256;  // of a block
inline constexpr int64_t kMatmulPanel = kPanelVectors * kLanes;
// Rows up to which reading b twice where it lies is less than packing it, of sums no shorter than
// this; and how deep a block of dot products of few rows is: so many pieces of rows of a stay in
// the nearest cache, and pieces of b that are longer are read at a higher rate.
inline constexpr int64_t kFewMatmulRows = 2 * kDotRows, kLeastDepth = 48, kFewMatmulDepth = 768;

// One block of y: offsets of its first row of a, column of b and element of y.
struct MatmulCell {
  int64_t a = 0, b = 0, y = 0;
  int64_t rows, columns;
};

struct MatmulOperands {
  const void *a, *b;
  void* y;
  void* scratch;
  int32_t y_dtype;  // that of a and b, or float32
};

// Which rows of a are multiplied by dot products with rows of b, where these lie along K: an
// element's products are added in another order than otherwise.
enum class DotProducts {
  kOfFewRows,
  kOfAnyRows,  // so that a row of y does not depend on how many others there are
};

// What is worth packing, decided by strides and sizes alone.
struct MatmulMethod {
  bool dots;      // rows of a against rows of b along K
  int64_t depth;  // of a block
  bool a_in_place, b_in_place, y_in_place;

  explicit MatmulMethod(const abi::MatmulParams& p, DotProducts when = DotProducts::kOfFewRows) {
    constexpr int64_t kStreamedDepth = 32;
    const bool floats = p.dtype == 0, few = p.m <= kDotRows;
    const bool any = when == DotProducts::kOfAnyRows;
    const bool twice = p.m <= kFewMatmulRows && p.k >= kLeastDepth;
    dots = (few || twice || any) && p.b_k == 1 && p.b_n != 1;
    // A block read many times over becomes dense first: rows far apart evict each other's lines.
    const bool reread = p.m > 4 * product_rows(kPanelVectors) && p.n > 2 * kMatmulPanel;
    a_in_place = floats && !dots && (p.a_k == 1 || p.a_m == 1) && !(reread && p.k > kMatmulDepth);
    b_in_place = floats && p.b_n == 1 && !reread;
    // For few rows b only streams by: whole pages of it at a time.
    depth = few && b_in_place ? kStreamedDepth : dots && !any ? kFewMatmulDepth : kMatmulDepth;
    y_in_place = floats && p.alpha == 1 && p.n % kLanes == 0 && !dots;
  }
};

struct MatmulScratch {
  float *a, *b, *y;
  int64_t y_row;
  int64_t bytes;

  MatmulScratch(const abi::MatmulParams& p, const MatmulMethod& method, void* base) {
    Arena arena(base);
    const int64_t rows = std::min(p.m, kMatmulRows);
    const int64_t columns = round_up(std::min(p.n, kMatmulColumns), kMatmulPanel);
    const int64_t depth = round_up(std::min(p.k, method.depth), kLanes);
    y_row = columns;
    a = arena.take<float>(method.a_in_place ? 0 : rows * depth);
    b = arena.take<float>(method.dots ? 0 : depth * (method.b_in_place ? kLanes : columns));
    y = arena.take<float>(method.y_in_place ? 0 : rows * columns);
    bytes = arena.bytes();
  }
};

template <typename T>
class FloatMatmul {
 public:
  FloatMatmul(const MatmulOperands& operands, const abi::MatmulParams& p,
              DotProducts when = DotProducts::kOfFewRows)
      : p_(p),
        method_(p, when),
        s_(p, method_, operands.scratch),
        a_(static_cast<const T*>(operands.a)),
        b_(static_cast<const T*>(operands.b)),
        y_(operands.y),
        y_dtype_(operands.y_dtype) {}

  void run(const MatmulCell& cell) {
    for (int64_t k = 0; k == 0 || k < p_.k; k += method_.depth) {
      const int64_t depth = std::min(method_.depth, p_.k - k);
      method_.dots ? dot(cell, k, depth) : multiply_depth(cell, k, depth);
    }
    if (!method_.y_in_place) store_block(cell);
  }

 private:
  // Columns beyond the last are computed with zeros; y in place has none.
  void multiply_depth(const MatmulCell& cell, int64_t k, int64_t depth) {
    FloatGemm product = gemm_of(cell, k, depth);
    if (!method_.b_in_place) return multiply_packed(cell, k, product);
    const int64_t whole = cell.columns / kLanes;
    product.b_k = p_.b_k;
    if constexpr (std::is_same_v<T, float>) product.b = b_ + cell.b + k * p_.b_k;
    if (whole > 0) multiply(product, cell.rows, whole);
    const int64_t rest = cell.columns - whole * kLanes;
    if (rest == 0) return;
    copy_rows(b_block(cell, k, depth, whole * kLanes, rest), s_.b, kLanes);
    product.b = s_.b;
    product.b_k = kLanes;
    product.c += whole * kLanes;
    multiply(product, cell.rows, 1);
  }

  void multiply_packed(const MatmulCell& cell, int64_t k, FloatGemm product) {
    float* c = product.c;
    for (int64_t column = 0; column < cell.columns; column += kMatmulPanel) {
      const int64_t width = std::min(kMatmulPanel, cell.columns - column);
      const int64_t vectors = (width + kLanes - 1) / kLanes;
      to_rows(b_block(cell, k, product.k, column, width), s_.b, vectors * kLanes);
      product.b = s_.b;
      product.b_k = vectors * kLanes;
      product.c = c + column;
      multiply(product, cell.rows, vectors);
    }
  }

  FloatGemm gemm_of(const MatmulCell& cell, int64_t k, int64_t depth) {
    FloatGemm product{s_.a, round_up(depth, kLanes), 1, s_.b, 0, s_.y, s_.y_row, depth, k > 0};
    if constexpr (std::is_same_v<T, float>) {
      if (method_.y_in_place) {
        product.c = static_cast<float*>(y_) + cell.y;
        product.c_row = p_.y_m;
      }
      if (method_.a_in_place) {
        product.a = a_ + cell.a + k * p_.a_k;
        product.a_row = p_.a_m;
        product.a_k = p_.a_k;
      }
    }
    if (!method_.a_in_place) pack_a(cell, k, depth);
    return product;
  }
  void pack_a(const MatmulCell& cell, int64_t k, int64_t depth) {
    const StridedBlock<T> a{a_ + cell.a + k * p_.a_k, p_.a_m, p_.a_k, cell.rows, depth};
    to_rows(a, s_.a, round_up(depth, kLanes));
  }
  StridedBlock<T> b_block(const MatmulCell& cell, int64_t k, int64_t depth, int64_t column,
                          int64_t width) {
    return {b_ + cell.b + k * p_.b_k + column * p_.b_n, p_.b_k, p_.b_n, depth, width};
  }

  void dot(const MatmulCell& cell, int64_t k, int64_t depth) {
    pack_a(cell, k, depth);
    DotRows dots{s_.a, round_up(depth, kLanes), p_.b_n, depth, s_.y, s_.y_row, k > 0};
    for (int64_t left = cell.rows; left > 0;) {
      const int64_t rows = left <= kDotRows ? left : std::min(kDotRows, kWideDotRows);
      dot_rows(dots, rows, b_ + cell.b + k, cell.columns);
      dots.a += rows * dots.a_row;
      dots.y += rows * dots.y_row;
      left -= rows;
    }
  }

  void store_block(const MatmulCell& cell) {
    for (int64_t r = 0; r < cell.rows; ++r) {
      const int64_t at = cell.y + r * p_.y_m;
      for (int64_t c = 0; c < cell.columns; c += kLanes) {
        const Vec y = load(s_.y + r * s_.y_row + c) * p_.alpha;
        const int64_t n = cell.columns - c;
        if (y_dtype_ == 0) {
          store_lanes(static_cast<float*>(y_) + at + c, y, n);
        } else if constexpr (!std::is_same_v<T, float>) {
          store_lanes(static_cast<T*>(y_) + at + c, y, n);
        }
      }
    }
  }

  const abi::MatmulParams& p_;
  const MatmulMethod method_;
  const MatmulScratch s_;
  const T *const a_, *const b_;
  void* const y_;
  const int32_t y_dtype_;
};

// float64 in itself; integers and bool in unsigned integers of 64 bits, which wrap.
template <typename T>
void multiply_plainly(const abi::MatmulParams& p, const MatmulCell& cell,
                      const MatmulOperands& operands) {
  using N = Number<T>;
  using Sum = std::conditional_t<std::is_same_v<N, double>, double, uint64_t>;
  constexpr int64_t kWidth = 32;
  const T* a = static_cast<const T*>(operands.a) + cell.a;
  const T* b = static_cast<const T*>(operands.b) + cell.b;
  T* y = static_cast<T*>(operands.y) + cell.y;
  for (int64_t row = 0; row < cell.rows; ++row) {
    for (int64_t column = 0; column < cell.columns; column += kWidth) {
      const int64_t width = std::min(kWidth, cell.columns - column);
      Sum sums[kWidth] = {};
      for (int64_t k = 0; k < p.k; ++k) {
        const auto x = static_cast<Sum>(decode<N>(a[row * p.a_m + k * p.a_k]));
        const T* b_row = b + k * p.b_k + column * p.b_n;
        for (int64_t j = 0; j < width; ++j) {
          sums[j] += x * static_cast<Sum>(decode<N>(b_row[j * p.b_n]));
        }
      }
      const auto alpha = static_cast<Sum>(static_cast<N>(p.alpha));
      for (int64_t j = 0; j < width; ++j) {
        y[row * p.y_m + column + j] = encode<T>(static_cast<N>(sums[j] * alpha));
      }
    }
  }
}

// nullptr when the dtype is one of abi.h's and alpha a number of its kind.
inline const char* check_matmul_numbers(const abi::MatmulParams& p) {
  if (element_size(p.dtype) == 0) return "there is no such dtype";
  const bool whole = p.alpha == std::trunc(p.alpha) && std::abs(p.alpha) <= 0x1p31f;
  if (!is_float(p.dtype) && p.dtype != kFloat64 && !whole) return "alpha is not an integer";
  return nullptr;
}

// How many blocks of `size` cover `count`.
inline int64_t matmul_blocks(int64_t count, int64_t size) {
  return count / size + (count % size != 0);
}

}  // namespace npusim::cpu::NPUSIM_ISA
