// Finishing sums that lie in memory, in every dtype and with every activation. A set that only adds
// dot products takes it from the set below it.
#include "kernels/cpu/epilogue.h"

#include "kernels/cpu/unary.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

constexpr int64_t kAtOnce =
    512;  // sums that wait for their activation: they stay in the near cache

// What happens to rows of columns in one walk: y = clamp(sums * factor + bias + before) + after +
// offset, where a pointer is null that adds nothing; of the residuals there is one at most.
struct Walk {
  const float *factor = nullptr, *bias = nullptr, *offset = nullptr;
  bool before = false, after = false;
  Range range = kAnything;
};

template <typename Y, typename R>
void walk_row(const Walk& walk, const float* sums, Y* y, const R* residual, int64_t columns) {
  const Vec lo = broadcast(walk.range.lo), hi = broadcast(walk.range.hi);
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t n = columns - c;
    Vec v = load(sums + c);
    if (walk.factor) v *= load_some(walk.factor + c, n);
    if (walk.bias) v += load_some(walk.bias + c, n);
    if (walk.before) v += load_some(residual + c, n);
    v = clamp(v, lo, hi);
    if (walk.after) v += load_some(residual + c, n);
    if (walk.offset) v += load_some(walk.offset + c, n);
    if (n >= kLanes) {
      store(y + c, v);
    } else {
      store_part(y + c, v, n);
    }
  }
}

// Of one finish(): rows and columns as there.
template <typename Y, typename R>
class Finish {
 public:
  Finish(const Output& out, int64_t row, int64_t column) : out_(out), row_(row), column_(column) {
    if (!out.bias) return;
    first_.bias = out.bias + column;
    if (out.more > 0) first_.factor = first_.bias + out.vector;
    if (out.more > 1) last_.offset = first_.bias + 2 * out.vector;
  }

  void run(int64_t rows, int64_t columns, const float* sums, int64_t stride) {
    first_.before = out_.residual_mode == kBeforeActivation;
    last_.after = out_.residual_mode == kAfterActivation;
    if (!has_range(out_)) return in_two_walks(rows, columns, sums, stride);
    first_.range = range_of(out_);
    first_.after = last_.after;
    first_.offset = last_.offset;
    for (int64_t r = 0; r < rows; ++r) {
      walk_row(first_, sums + r * stride, y(r, 0), residual(r, 0), columns);
    }
  }

 private:
  // What stands before the activation, for as many rows as there is room for; it; what follows it.
  void in_two_walks(int64_t rows, int64_t columns, const float* sums, int64_t stride) {
    alignas(64) float buffer[kAtOnce];
    for (int64_t c = 0; c < columns; c += kAtOnce) {
      const int64_t count = std::min(columns - c, kAtOnce);
      const int64_t width = (count + kLanes - 1) / kLanes * kLanes, most = kAtOnce / width;
      const Walk first = from(first_, c), last = from(last_, c);
      for (int64_t r = 0; r < rows; r += most) {
        const int64_t end = std::min(rows, r + most);
        for (int64_t i = r; i < end; ++i) {
          float* to = buffer + (i - r) * width;
          walk_row(first, sums + i * stride + c, to, residual(i, c), count);
          std::fill(to + count, to + width, 0.0F);
        }
        apply_to_row(out_.act, buffer, 1, buffer, (end - r) * width);
        for (int64_t i = r; i < end; ++i) {
          walk_row(last, buffer + (i - r) * width, y(i, c), residual(i, c), count);
        }
      }
    }
  }

  static Walk from(Walk walk, int64_t column) {
    if (walk.factor) walk.factor += column;
    if (walk.bias) walk.bias += column;
    if (walk.offset) walk.offset += column;
    return walk;
  }
  Y* y(int64_t row, int64_t column) const {
    return static_cast<Y*>(out_.y) + out_.y_rows[row_ + row] + column_ + column;
  }
  const R* residual(int64_t row, int64_t column) const {
    if (out_.residual_mode == kNoResidual) return nullptr;
    return static_cast<const R*>(out_.residual) + out_.r_rows[row_ + row] + column_ + column;
  }

  const Output& out_;
  const int64_t row_, column_;
  Walk first_, last_;
};

// Stores V vectors beside each other, in 16 bits.
template <int V, typename Y>
inline void store_row(Y* y, const Vec (&row)[V]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (V == 2 && std::is_same_v<Y, bfloat16>) {  // rounded apart and narrowed together
    const auto rounded = [](Vec v) __attribute__((always_inline)) {
      const UVec bits = as_bits(v);
      const UVec nearest = bits + 0x7FFF + ((bits >> 16) & 1);
      return (__m256i)(((v != v) ? (bits | 0x400000) : nearest) >> 16);
    };
    const __m256i words = _mm256_packus_epi32(rounded(row[0]), rounded(row[1]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm256_permute4x64_epi64(words, 0xD8));
    return;
  }
#endif
  for (int v = 0; v < V; ++v) store(y + v * kLanes, row[v]);
}

// Of one finish_whole(): rows as there, y and residual at their first column.
template <typename Y, typename R>
void finish_rows(const Output& out, int64_t row, int64_t rows, int64_t column, float* sums) {
  constexpr int V = kFinishedColumns / kLanes;
  const int64_t* y_rows = out.y_rows + row;
  Vec bias[V];
  for (int v = 0; v < V; ++v) {  // -0 changes no sum
    bias[v] = out.bias ? load(out.bias + column + v * kLanes) : broadcast(-0.0F);
  }
  const auto sum = [&](int64_t r, int v) __attribute__((always_inline)) {
    const Vec at = load(sums + r * kFinishedColumns + v * kLanes) + bias[v];
    if (out.residual_mode == kNoResidual) return at;
    const R* residual = static_cast<const R*>(out.residual) + out.r_rows[row + r] + column;
    return at + load(residual + v * kLanes);
  };
  Y* y = static_cast<Y*>(out.y) + column;
  if (has_range(out)) {
    const Range range = range_of(out);
    const Vec lo = broadcast(range.lo), hi = broadcast(range.hi);
    for (int64_t r = 0; r < rows; ++r) {
      Vec within[V];
      for (int v = 0; v < V; ++v) within[v] = clamp(sum(r, v), lo, hi);
      store_row(y + y_rows[r], within);
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int v = 0; v < V; ++v) store(sums + r * kFinishedColumns + v * kLanes, sum(r, v));
  }
  apply_to_row(out.act, sums, 1, sums, rows * kFinishedColumns);
  for (int64_t r = 0; r < rows; ++r, sums += kFinishedColumns) {
    Vec activated[V];
    for (int v = 0; v < V; ++v) activated[v] = load(sums + v * kLanes);
    store_row(y + y_rows[r], activated);
  }
}

// finish() of whole vectors where a bias and an activation that is no range are all.
bool is_activated(const Output& out, int64_t columns) {
  return !has_range(out) && out.residual_mode == kNoResidual && out.more == 0 &&
         columns % kLanes == 0 && columns <= kAtOnce;
}

template <typename Y>
void finish_activated(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns,
                      const float* sums, int64_t stride) {
  alignas(64) float buffer[kAtOnce];
  const int64_t most = kAtOnce / std::max(columns, int64_t{kLanes});
  Y* y = static_cast<Y*>(out.y) + column;
  for (int64_t r = 0; r < rows; r += most) {
    const int64_t count = std::min(rows - r, most);
    for (int64_t c = 0; c < columns; c += kLanes) {  // -0 changes no sum
      const Vec bias = out.bias ? load(out.bias + column + c) : broadcast(-0.0F);
      for (int64_t i = 0; i < count; ++i) {
        store(buffer + i * columns + c, load(sums + (r + i) * stride + c) + bias);
      }
    }
    apply_to_row(out.act, buffer, 1, buffer, count * columns);
    for (int64_t i = 0; i < count; ++i) {
      Y* to = y + out.y_rows[row + r + i];
      for (int64_t c = 0; c < columns; c += kLanes) store(to + c, load(buffer + i * columns + c));
    }
  }
}

}  // namespace

void finish_whole(const Output& out, int64_t row, int64_t rows, int64_t column, float* sums) {
  if constexpr (kFinishesWhole) {
    with_float_type(out.y_dtype, [&]<typename Y>(Y) {
      if constexpr (!std::is_same_v<Y, float>) {
        const auto of = out.r_dtype == 0 ? finish_rows<Y, float> : finish_rows<Y, Y>;
        of(out, row, rows, column, sums);
      }
    });
  }
}

void finish(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns,
            const float* sums, int64_t stride) {
  with_float_type(out.y_dtype, [&]<typename Y>(Y) {
    if (is_activated(out, columns)) {
      return finish_activated<Y>(out, row, rows, column, columns, sums, stride);
    }
    with_float_type(out.r_dtype, [&]<typename R>(R) {
      Finish<Y, R>(out, row, column).run(rows, columns, sums, stride);
    });
  });
}

void activate_rows(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  float* y = static_cast<float*>(out.y) + column;
  apply_to_rows(out.act, y, 1, y, out.y_rows + row, rows, columns);
}

void activate(const Output& out, float* values, int64_t n) {
  if (!has_range(out)) return apply_to_row(out.act, values, 1, values, n);
  const auto [low, high] = range_of(out);
  const Vec lo = broadcast(low), hi = broadcast(high);
  for (int64_t i = 0; i < n; i += kLanes) store(values + i, clamp(load(values + i), lo, hi));
}

}  // namespace npusim::cpu::NPUSIM_ISA
