// The iteration space of `index` and `scatter`: one operand addressed by position alone (dense:
// y of index, src of scatter), one whose address the index tensors complete (indexed), and the
// index tensors. Owns collapsing, the split into contiguous runs, and walking the space in
// row-major order. Index values are data: `resolve` checks each one before it becomes an address.
#pragma once

#include <algorithm>
#include <cstdlib>

#include "kernels/cpu/check.h"

namespace npusim::cpu::NPUSIM_ISA {

struct IndexSpace {
  static constexpr int kOperands = 2 + abi::kIndexTensors;
  enum Operand { kDense, kIndexed, kFirstIndex };

  // Strides of every operand along one dimension.
  struct Dimension {
    int64_t size;
    int64_t strides[kOperands];
  };

  int rank = 0;
  int n = 0;
  Dimension dims[abi::kRank];
  // The innermost elements that no index tensor tells apart; they move as one run.
  int64_t run = 1;
  int64_t run_dense = 0, run_indexed = 0;
  int64_t k_size[abi::kIndexTensors];
  int64_t k_least[abi::kIndexTensors];  // the least index there is: 0, or -k_size
  int64_t k_stride[abi::kIndexTensors];

  int64_t items() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= dims[d].size;
    return count;
  }
};

// Merges two neighbouring dimensions when every operand walks them as one; false if it cannot.
inline bool merge(IndexSpace::Dimension& outer, const IndexSpace::Dimension& inner, int operands) {
  for (int i = 0; i < operands; ++i) {
    if (outer.strides[i] != inner.strides[i] * inner.size) return false;
  }
  outer.size *= inner.size;
  for (int i = 0; i < operands; ++i) outer.strides[i] = inner.strides[i];
  return true;
}

// Builds the collapsed space of checked parameters over `shape` (p's own, or a part of it). An
// empty shape becomes one dimension of size 0.
template <typename Params>
IndexSpace index_space(const Params& p, const int64_t* shape, const int64_t* dense,
                       const int64_t* indexed) {
  IndexSpace space;
  space.n = p.n;
  for (int k = 0; k < p.n; ++k) {
    space.k_size[k] = std::abs(p.k_size[k]);
    space.k_least[k] = std::min<int64_t>(0, -p.k_size[k]);
    space.k_stride[k] = p.k_stride[k];
  }
  const int operands = IndexSpace::kFirstIndex + p.n;
  for (int d = 0; d < p.rank; ++d) {
    if (shape[d] == 1) continue;
    if (shape[d] == 0) {
      space.dims[0] = {};
      space.rank = 1;
      return space;
    }
    IndexSpace::Dimension next{shape[d], {dense[d], indexed[d]}};
    for (int k = 0; k < p.n; ++k) {
      next.strides[IndexSpace::kFirstIndex + k] = p.idx_strides[k * abi::kRank + d];
    }
    if (space.rank == 0 || !merge(space.dims[space.rank - 1], next, operands)) {
      space.dims[space.rank++] = next;
    }
  }
  if (space.rank == 0) return space;
  const IndexSpace::Dimension& last = space.dims[space.rank - 1];
  bool shared = true;
  for (int k = 0; k < p.n; ++k) shared &= last.strides[IndexSpace::kFirstIndex + k] == 0;
  if (shared) {
    space.run = last.size;
    space.run_dense = last.strides[IndexSpace::kDense];
    space.run_indexed = last.strides[IndexSpace::kIndexed];
    --space.rank;
  }
  return space;
}

// A position in the space and the offset of every operand there.
struct IndexCursor {
  int64_t at[abi::kRank] = {};
  int64_t offset[IndexSpace::kOperands] = {};

  void move(const IndexSpace& space, int d, int64_t steps) {
    at[d] += steps;
    for (int i = 0; i < IndexSpace::kFirstIndex + space.n; ++i) {
      offset[i] += steps * space.dims[d].strides[i];
    }
  }

  // Goes to the item of row-major number `item`, counting from the origin.
  void seek(const IndexSpace& space, int64_t item) {
    for (int d = space.rank - 1; d >= 0; --d) {
      move(space, d, item % space.dims[d].size);
      item /= space.dims[d].size;
    }
  }

  // Advances by `steps` along the innermost dimension, which must reach at most its end.
  void advance(const IndexSpace& space, int64_t steps) {
    int d = space.rank - 1;
    if (d < 0) return;
    for (move(space, d, steps); d > 0 && at[d] == space.dims[d].size; move(space, d, 1)) {
      move(space, d, -at[d]);
      --d;
    }
  }
};

// Sums what the index tensors add to the indexed offset for the item `i` innermost steps after
// the cursor. Reports the first index out of range and returns false.
template <typename Index>
bool resolve(const IndexSpace& space, const IndexCursor& cursor, const Index* const* idx, int64_t i,
             int64_t* offset, Failure* failure) {
  const int64_t* steps = space.rank ? space.dims[space.rank - 1].strides : nullptr;
  int64_t sum = 0;
  for (int k = 0; k < space.n; ++k) {
    const int operand = IndexSpace::kFirstIndex + k;
    const int64_t step = steps ? i * steps[operand] : 0;
    const int64_t given = static_cast<int64_t>(idx[k][cursor.offset[operand] + step]);
    if (given < space.k_least[k] || given >= space.k_size[k]) {
      failure->report("index out of range", given, space.k_size[k]);
      return false;
    }
    sum += (given < 0 ? given + space.k_size[k] : given) * space.k_stride[k];
  }
  *offset = sum;
  return true;
}

// Calls f(dense offset, indexed offset) for items [begin, end) in row-major order, until one
// index is out of range.
template <typename Index, typename F>
void for_each_item(const IndexSpace& space, int64_t begin, int64_t end, const void* const* operands,
                   Failure* failure, F f) {
  if (begin >= end) return;
  const Index* idx[abi::kIndexTensors];
  for (int k = 0; k < space.n; ++k) idx[k] = static_cast<const Index*>(operands[k]);
  const bool flat = space.rank == 0;
  const IndexSpace::Dimension inner =
      flat ? IndexSpace::Dimension{1, {}} : space.dims[space.rank - 1];
  IndexCursor cursor;
  cursor.seek(space, begin);
  for (int64_t item = begin; item < end;) {
    const int64_t left = flat ? 1 : inner.size - cursor.at[space.rank - 1];
    const int64_t count = std::min(end - item, left);
    for (int64_t i = 0; i < count; ++i) {
      int64_t offset;
      if (!resolve(space, cursor, idx, i, &offset, failure)) return;
      f(cursor.offset[IndexSpace::kDense] + i * inner.strides[IndexSpace::kDense],
        cursor.offset[IndexSpace::kIndexed] + i * inner.strides[IndexSpace::kIndexed] + offset);
    }
    item += count;
    cursor.advance(space, count);
  }
}

// Calls f with a value of the integer type that an index dtype code names.
template <typename F>
void with_index_type(int32_t dtype, F&& f) {
  switch (static_cast<abi::DType>(dtype)) {
    case abi::DType::kInt32:
      return f(int32_t{});
    case abi::DType::kUint8:
      return f(uint8_t{});
    default:
      return f(int64_t{});
  }
}

// check() of both kernels, once the counts are known to be in range: index dtype, rank, n, and the
// walks over the index tensors, which are operands 1 … n.
template <typename Params>
const char* check_indices(const KernelCheck& c, const Params& p) {
  if (p.n < 0 || p.n > abi::kIndexTensors) return "it has too many index tensors";
  if (p.rank < 0 || p.rank > abi::kRank) return "it has too many dimensions";
  if (const char* why = operand_count(c, static_cast<size_t>(p.n) + 2)) return why;
  if (!is_index(p.idx_dtype)) return "the indices are not int64, int32 or uint8";
  if (product(p.shape, p.rank) < 0) return "a size is negative or too large";
  for (int k = 0; k < p.n; ++k) {
    const Region walk = Region().dims(p.shape, p.idx_strides + k * abi::kRank, p.rank);
    const auto operand = static_cast<size_t>(k) + 1;
    if (const char* why = walk.reads(c, operand, element_size(p.idx_dtype))) return why;
  }
  return nullptr;
}

// How many places an index chooses among, of a `k_size`; the least int64 stays negative.
inline int64_t extent(int64_t k_size) {
  return k_size < -INT64_MAX ? k_size : std::abs(k_size);
}

// What the operand can be asked for whose address the indices complete.
template <typename Params>
Region indexed_region(const Params& p, const int64_t* strides) {
  int64_t sizes[abi::kIndexTensors] = {};
  for (int k = 0; k < p.n; ++k) sizes[k] = extent(p.k_size[k]);
  return Region().dims(p.shape, strides, p.rank).dims(sizes, p.k_stride, p.n);
}

}  // namespace npusim::cpu::NPUSIM_ISA
