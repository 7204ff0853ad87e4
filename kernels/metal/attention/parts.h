// Keys of few rows shared by up to NPUSIM_PARTS threadgroups: which part each has, and where sums
// of a row go: to y, or where there are several parts to scratch memory, from which a second launch
// combines them in their order. How many parts there are follows from how many keys are in use.
#pragma once
#include "kernels/metal/attention/scores.h"

#if NPUSIM_PARTS > 1
#define NPUSIM_SCRATCH_OPERAND device float *scratch [[buffer(NPUSIM_SCRATCH)]],
#define NPUSIM_SCRATCH_POINTER scratch
#else
#define NPUSIM_SCRATCH_OPERAND
#define NPUSIM_SCRATCH_POINTER nullptr
#endif

namespace npusim {

enum : int {
  kEach = NPUSIM_ROWS,  // rows of a threadgroup
  kParts = NPUSIM_PARTS,
  kLeastKeys = NPUSIM_PART_KEYS,  // of a part, where there are several
  kSums = kV + 2                  // a row's maximum, its sum, its columns
};

// Rows are a type with what rows.h says of `Rows`. Keys [begin, end), one of `parts`.
struct Part {
  int64_t begin, end;
  int number, parts;
};

inline Part part_of(int64_t begin, int64_t end, int number) {
  const int64_t keys = end > begin ? end - begin : 0;
  const int64_t wanted = (keys + kLeastKeys - 1) / kLeastKeys;
  const int64_t parts = kParts == 1 || wanted < 1 ? 1 : wanted < kParts ? wanted : kParts;
  const int64_t each = (keys + parts - 1) / parts;
  const int64_t first = number * each < keys ? begin + number * each : begin + keys;
  const int64_t last = first + each < begin + keys ? first + each : begin + keys;
  return {first, last, number, static_cast<int>(parts)};
}
// The keys that rows from `first` on see, of a threadgroup.
template <typename Rows>
inline Part part_of_rows(thread const Rows& rows, int first, int number) {
  const int last = first + kEach < kRows ? first + kEach - 1 : kRows - 1;
  return part_of(rows.begin(first), rows.end(last), number);
}

// Where the rows of a key/value head, the `item`th of all, go.
struct RowSums {
  device T* y;
  device float* scratch;
  int64_t item;

  device float* partial(int row, int number) const {
    return scratch + ((item * kRows + row) * kParts + number) * kSums;
  }
  template <typename Rows>
  void put(thread const Rows& rows, Part part, int row, int column, float sum, float row_max,
           float row_sum) const {
    if (part.parts == 1) {
      y[rows.place(row) + column] = result_of(sum, row_sum);
      return;
    }
    device float* to = partial(row, part.number);
    if (column == 0) {
      to[0] = row_max;
      to[1] = row_sum;
    }
    to[2 + column] = sum;
  }
  // Combines the parts of a row, by `threads` threads.
  template <typename Rows>
  void combine(thread const Rows& rows, int row, int t, int threads) const {
    const int first = row / kEach * kEach;
    const int parts = part_of_rows(rows, first, 0).parts;
    if (parts == 1) return;
    float row_max = kMasked, row_sum = 0.0f;
    for (int i = 0; i < parts; ++i) row_max = larger(row_max, partial(row, i)[0]);
    for (int i = 0; i < parts; ++i) {
      device const float* of_part = partial(row, i);
      row_sum += rescale(of_part[0], row_max) * of_part[1];
    }
    for (int column = t; column < kV; column += threads) {
      float sum = 0.0f;
      for (int i = 0; i < parts; ++i) {
        device const float* of_part = partial(row, i);
        sum += rescale(of_part[0], row_max) * of_part[2 + column];
      }
      y[rows.place(row) + column] = result_of(sum, row_sum);
    }
  }
};

}  // namespace npusim
