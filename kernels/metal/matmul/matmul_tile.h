// What matmul and grouped_matmul share: the operands of a tile of y, wherever they lie, of any
// dtype.
#pragma once
#include "kernels/metal/common/four.h"
#include "kernels/metal/matmul/matmul_output.h"
#include "kernels/metal/matmul/tile.h"

namespace npusim {

// A tile's matrices and its place in them.
struct MatmulSource {
  struct Row {
    device const T* a;
    int64_t end;
  };
  struct Column {
    device const T* b;
    int64_t end;
  };
  enum : bool { kAlongK = params.a_k == 1 || params.a_m != 1, kBAlongK = params.b_n != 1 };
  device const T* first;
  device const T* second;
  int64_t row, column;  // of y, that the tile starts with
  int64_t rows;         // the tile has none after them
  int64_t depth;

  Row a_row(int at) const {
    const bool exists = row + at < rows;
    Row found;
    found.a = first + (exists ? (row + at) * params.a_m : 0);
    found.end = exists ? depth : 0;
    return found;
  }
  Column b_column(int at) const {
    const bool exists = column + at < params.n;
    Column found;
    found.b = second + (exists ? (column + at) * params.b_n : 0);
    found.end = exists ? depth : 0;
    return found;
  }
  Staged a(Row from, int64_t k) const {
    return k < from.end ? static_cast<Staged>(from.a[k * params.a_k]) : static_cast<Staged>(0);
  }
  Staged b(Column from, int64_t k) const {
    return k < from.end ? static_cast<Staged>(from.b[k * params.b_k]) : static_cast<Staged>(0);
  }
  void a_four(Row from, int64_t k, thread Staged* to) const {
    if (params.a_k == 1) return load_four(from.a + k, from.end - k, to);
#pragma unroll
    for (int e = 0; e < 4; ++e) to[e] = a(from, k + e);
  }
  void b_four(Column from, int64_t k, thread Staged* to) const {
    if (params.b_k == 1) return load_four(from.b + k, from.end - k, to);
#pragma unroll
    for (int e = 0; e < 4; ++e) to[e] = b(from, k + e);
  }
};

}  // namespace npusim
