#include "cpp/simulate/dataflow.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cpp/runtime/error.h"

namespace npusim::simulate {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

class WeightStationary : public Dataflow {
  Folds folds(const Product& p, int64_t rows, int64_t cols) const override {
    const int64_t down = ceil_div(p.k, rows), across = ceil_div(p.n, cols);
    return {down * across, p.m, rows, p.m * p.k * across, p.k * p.n, p.m * p.n * down};
  }
};

class OutputStationary : public Dataflow {
  Folds folds(const Product& p, int64_t rows, int64_t cols) const override {
    const int64_t down = ceil_div(p.m, rows), across = ceil_div(p.n, cols);
    return {down * across, p.k, 0, p.m * p.k * across, p.k * p.n * down, p.m * p.n};
  }
};

class InputStationary : public Dataflow {
  Folds folds(const Product& p, int64_t rows, int64_t cols) const override {
    const int64_t down = ceil_div(p.k, rows), across = ceil_div(p.m, cols);
    return {down * across, p.n, rows, p.m * p.k, p.k * p.n * across, p.m * p.n * down};
  }
  // Inputs of one channel at a time are in the array.
  Repeated depthwise(int64_t m, int64_t n, int64_t taps, int64_t) const override {
    return {{m, 1, taps}, n};
  }
};

}  // namespace

const Dataflow& Dataflow::named(std::string_view name) {
  static const WeightStationary ws;
  static const OutputStationary os;
  static const InputStationary is;
  if (name == "ws") return ws;
  if (name == "os") return os;
  if (name == "is") return is;
  throw Error(ErrorCode::kInput, "No dataflow is called '" + std::string(name) + "'.");
}

Repeated products_of(const Array& array, const std::array<int64_t, 4>& bmnk, int64_t taps,
                     bool depthwise) {
  const auto [b, m, n, k] = bmnk;
  if (depthwise) return array.dataflow->depthwise(m, n, taps, array.cols);
  return {{m, n, k}, b * taps};
}

double vector_cycles(const std::vector<VectorPass>& passes, double rate, double part,
                     double whole) {
  double cycles = 0;
  for (const VectorPass& pass : passes) {
    cycles += std::ceil(pass.elements * part / whole / rate) * pass.cycles;
  }
  return cycles;
}

int64_t array_cycles(const Array& array, const Product& product, int64_t repeats) {
  // No number of folds, passes or operands is above that of all multiply-adds.
  double all = static_cast<double>(repeats);
  for (const int64_t size : {product.m, product.n, product.k}) all *= static_cast<double>(size);
  if (!(all <= kMostMultiplyAdds)) {
    throw Error(ErrorCode::kInput, "A product of more than 2^60 multiply-adds is not counted.");
  }
  const Folds one = array.dataflow->folds(product, array.rows, array.cols);
  const int64_t folds = ceil_div(one.folds * repeats, array.arrays);
  const double streamed = std::ceil(static_cast<double>(one.steps) / array.macs_per_cycle);
  const double longest = streamed + 2 * static_cast<double>(array.rows) +
                         static_cast<double>(array.cols) +
                         static_cast<double>(array.min_stream_rows);
  if (!(static_cast<double>(folds + 1) * longest <= kMostCycles)) {
    throw Error(ErrorCode::kInput, "A product takes the array longer than 2^50 cycles.");
  }
  const auto steps = static_cast<int64_t>(streamed);
  if (array.overlaps) {
    const int64_t each = std::max({steps, array.rows, array.min_stream_rows});
    return folds * each + 2 * array.rows + array.cols - 2;
  }
  return folds * (steps + array.rows + array.cols - 2 + one.loads);
}

}  // namespace npusim::simulate
