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
template <typename T>
void copy_columns(const StridedBlock<T>& block, float* to, int64_t to_row) {
  for (int64_t c = 0; c < block.columns; c += kLanes) {
    const int64_t width = std::min<int64_t>(kLanes, block.columns - c);
    for (int64_t r = 0; r < block.rows; r += kLanes) {
      const int64_t height = std::min<int64_t>(kLanes, block.rows - r);
      Vec square[kLanes] = {};
      for (int64_t i = 0; i < width; ++i) {
        square[i] = load_lanes(block.at + (c + i) * block.column + r, height);
      }
      transpose(square);
      for (int64_t i = 0; i < height; ++i) store(to + (r + i) * to_row + c, square[i]);
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
