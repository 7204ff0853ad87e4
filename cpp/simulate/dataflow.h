// Cycles and traffic of a product on a systolic array, by what stays in the array.
//
// A dataflow is one class: how a product falls into folds, and how often operands pass the memory
// beside the array. A. Samajdar et al., "A Systematic Methodology for Characterizing Scalability of
// DNN Accelerators using SCALE-Sim", ISPASS 2020, has the formulas of folds.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace npusim::simulate {

// One product y[m, n] = x[m, k] w[k, n].
struct Product {
  int64_t m, n, k;
};

// `folds` passes over the array of `steps` each; `loads`: rows that are loaded before a fold.
// `x`, `w` and `sums`: elements that pass the memories.
struct Folds {
  int64_t folds, steps, loads;
  int64_t x, w, sums;
};

// Products of one shape, one after the other.
struct Repeated {
  Product product;
  int64_t repeats;
};

constexpr double kMostCycles = int64_t{1} << 50;        // that are counted
constexpr double kMostMultiplyAdds = int64_t{1} << 60;  // of one product

class Dataflow {
 public:
  virtual ~Dataflow() = default;
  virtual Folds folds(const Product& product, int64_t rows, int64_t cols) const = 0;
  // What n channels of m pixels are that have nothing to do with each other. Columns share what
  // streams into the rows, so a channel has one column of a fold.
  virtual Repeated depthwise(int64_t m, int64_t n, int64_t taps, int64_t cols) const {
    return {{m, n * cols, taps}, 1};
  }
  // "ws", "os" or "is"; Error(kInput) for another name.
  static const Dataflow& named(std::string_view name);
};

// An array, or several of a core that share the folds of a product.
struct Array {
  int64_t rows, cols, arrays, min_stream_rows;
  bool overlaps;  // the next fold's weights are loaded while one computes
  double macs_per_cycle;
  const Dataflow* dataflow;
};

// What a tile is to an array: b items or groups, m, n and k of each, at `taps` positions.
Repeated products_of(const Array& array, const std::array<int64_t, 4>& bmnk, int64_t taps,
                     bool depthwise);

// Cycles of `repeats` products of one shape (taps, items of a batch), one after the other.
// Without overlap a fold takes steps + rows + cols - 2, and what it loads; with it folds take
// max(steps, rows, min_stream_rows), and all of them 2 rows + cols - 2 once.
// Throws Error(kInput) where those are more than are counted.
int64_t array_cycles(const Array& array, const Product& product, int64_t repeats);

// Elements that pass a vector unit, and the cycles of one pass of as many as it takes at once.
struct VectorPass {
  double elements, cycles;
};

// Cycles of `part` of a `whole` of them, at `rate` elements at once.
double vector_cycles(const std::vector<VectorPass>& passes, double rate, double part, double whole);

}  // namespace npusim::simulate
