// Random strided tensors for the tests of kernels that take any strides: permuted, padded, flipped
// and broadcast dimensions, in a block that ends exactly where the last element does.
#pragma once

#include "tests/cpp/typed_operand.h"

namespace npusim::cpu {

inline int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// A tensor's place in memory, in elements.
struct Layout {
  int rank = 0;
  int64_t shape[abi::kRank] = {};
  int64_t strides[abi::kRank] = {};

  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
  // How far elements reach before and after the first one.
  int64_t reach(int sign) const {
    int64_t total = 0;
    for (int d = 0; d < rank; ++d) {
      const int64_t span = (shape[d] - 1) * strides[d];
      if (shape[d] > 0 && (span < 0) == (sign < 0)) total += span < 0 ? -span : span;
    }
    return total;
  }
  // Offset of element `i` in row-major order.
  int64_t offset(int64_t i) const {
    int64_t total = 0;
    for (int d = rank - 1; d >= 0; --d) {
      total += i % shape[d] * strides[d];
      i /= shape[d];
    }
    return total;
  }
};

enum Freedom { kDense = 0, kPermuted = 1, kPadded = 2, kFlipped = 4, kBroadcast = 8 };

// Strides for a shape; `freedom` says what may differ from row-major.
inline Layout random_layout(const Layout& like, int freedom, std::mt19937& random) {
  Layout out = like;
  int order[abi::kRank];
  for (int d = 0; d < out.rank; ++d) order[d] = d;
  if ((freedom & kPermuted) && random() % 2) std::shuffle(order, order + out.rank, random);
  int64_t step = (freedom & kPadded) && random() % 4 == 0 ? 2 : 1;
  for (int i = out.rank - 1; i >= 0; --i) {
    const int d = order[i];
    const bool broadcast = (freedom & kBroadcast) && random() % 4 == 0;
    out.strides[d] = broadcast ? 0 : step;
    if (broadcast) continue;
    if ((freedom & kFlipped) && random() % 6 == 0) out.strides[d] = -step;
    step *= out.shape[d] > 0 ? out.shape[d] : 1;
    if ((freedom & kPadded) && random() % 4 == 0) step += pick(random, 1, 3);
  }
  return out;
}

inline Layout random_shape(int max_rank, int64_t max_count, std::mt19937& random) {
  Layout out;
  out.rank = static_cast<int>(pick(random, 0, max_rank));
  int64_t left = max_count;
  for (int d = 0; d < out.rank; ++d) {
    const int64_t kSizes[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 130, 1025, 3000};
    int64_t size = kSizes[random() % std::size(kSizes)];
    if (size > left) size = pick(random, 1, left < 5 ? left : 5);
    out.shape[d] = size;
    left /= size;
  }
  std::shuffle(out.shape, out.shape + out.rank, random);
  return out;
}

// An operand of exactly the layout's elements.
inline Operand operand_of(const Layout& layout, int32_t dtype, std::mt19937& random) {
  const int64_t before = layout.reach(-1), after = layout.reach(1);
  Operand out = typed_operand(dtype, layout.count() == 0 ? 0 : before + after + 1, random);
  out.offset = layout.count() == 0 ? 0 : before * size_of_dtype(dtype);
  return out;
}

// The elements of an operand in row-major order, as doubles (int64 must be small).
inline std::vector<double> elements_of(const Operand& operand, const Layout& layout,
                                       int32_t dtype) {
  const std::vector<double> all = numbers_of(operand, dtype);
  const int64_t first = operand.offset / size_of_dtype(dtype);
  std::vector<double> out(static_cast<size_t>(layout.count()));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = all[static_cast<size_t>(first + layout.offset(static_cast<int64_t>(i)))];
  return out;
}

// Bytes outside the layout's elements must be as they were.
inline bool gaps_untouched(const Operand& before, const Operand& after, const Layout& layout,
                           int32_t dtype) {
  const auto size = static_cast<size_t>(size_of_dtype(dtype));
  std::vector<bool> written(before.bytes.size());
  for (int64_t i = 0; i < layout.count(); ++i) {
    const auto at = static_cast<size_t>(before.offset + layout.offset(i) * int64_t(size));
    for (size_t b = 0; b < size; ++b) written[at + b] = true;
  }
  for (size_t b = 0; b < written.size(); ++b) {
    if (!written[b] && before.bytes[b] != after.bytes[b]) return false;
  }
  return true;
}

}  // namespace npusim::cpu
