// A strided block as rows of float: the packing that operands seen only at run time need before
// the GEMM of gemm_tile.h can read them.
#pragma once

#include <algorithm>

#include "kernels/cpu/storage.h"
#include "kernels/cpu/transpose.h"

namespace npusim::cpu::NPUSIM_ISA {

inline int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

// A block of a matrix: element (r, c) is at[r * row + c * column].
template <typename T>
struct StridedBlock {
  const T* at;
  int64_t row, column;
  int64_t rows, columns;
};

// to[r][c] = block(r, c), rows `to_row` floats apart, filled with zeros to a whole vector: to_row
// is at least the columns rounded up to kLanes.
template <typename T>
void copy_rows(const StridedBlock<T>& block, float* to, int64_t to_row) {
  for (int64_t r = 0; r < block.rows; ++r) {
    const T* from = block.at + r * block.row;
    for (int64_t c = 0; c < block.columns; c += kLanes) {
      store(to + r * to_row + c, load_lanes(from + c, block.columns - c));
    }
  }
}
// Rows [0, height) of columns [0, width) as rows, with zeros in place of more columns.
template <typename T>
[[gnu::noinline]] void copy_part_of_square(const T* from, int64_t column, int64_t width,
                                           int64_t height, float* to, int64_t to_row) {
  Vec square[kLanes] = {};
  for (int64_t i = 0; i < width; ++i) square[i] = load_lanes(from + i * column, height);
  transpose(square);
  for (int64_t i = 0; i < height; ++i) store(to + i * to_row, square[i]);
}
// The same of kLanes each, which never leaves the registers. Brings near as many columns further
// on, which follow or are of no use: a processor finds out by itself what comes next in a column,
// and not where the next one begins.
template <typename T>
inline void copy_square(const T* from, int64_t column, float* to, int64_t to_row) {
  const auto ahead = static_cast<uintptr_t>(kLanes * column) * sizeof(T);
  Vec square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    const T* at = from + i * column;
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(at) + ahead));
    square[i] = load(at);
  }
  transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(to + i * to_row, square[i]);
}
template <typename T>
void copy_columns(const StridedBlock<T>& block, float* to, int64_t to_row) {
  for (int64_t c = 0; c < block.columns; c += kLanes) {
    const int64_t width = std::min<int64_t>(kLanes, block.columns - c);
    for (int64_t r = 0; r < block.rows; r += kLanes) {
      const int64_t height = std::min<int64_t>(kLanes, block.rows - r);
      const T* from = block.at + c * block.column + r;
      float* at = to + r * to_row + c;
      if (width == kLanes && height == kLanes) {
        copy_square(from, block.column, at, to_row);
      } else {
        copy_part_of_square(from, block.column, width, height, at, to_row);
      }
    }
  }
}
template <typename T>
void to_rows(const StridedBlock<T>& block, float* to, int64_t to_row) {
  if (block.column == 1 || block.columns == 1) return copy_rows(block, to, to_row);
  if (block.row == 1 || block.rows == 1) return copy_columns(block, to, to_row);
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t c = 0; c < block.columns; c += kLanes) {
      Vec lanes{};
      for (int64_t i = 0; i < std::min<int64_t>(kLanes, block.columns - c); ++i) {
        lanes[i] = to_float(block.at[r * block.row + (c + i) * block.column]);
      }
      store(to + r * to_row + c, lanes);
    }
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
