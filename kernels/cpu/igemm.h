// The indirect GEMM under gemm, conv, conv_winograd and matmul: A's rows lie anywhere in memory,
// cut into runs ("taps") that a table of pointers names; B is packed in panels of 16 columns,
// [panel][K][16]. No copy of A is made, a convolution's padding is a pointer to zeros.
//
// A tile of rows x panels keeps its sums in registers over all taps; long K is cut into blocks
// whose part of B stays in cache while every tile passes over it. An element's products are added
// in the order of K whatever the tiling, so results do not depend on tasks or workers.
//
// What is multiplied are floats; 16-bit weights are widened a block of K at a time, for all rows
// that pass over it, or where a register of them serves enough rows (kWidensInTile) as they are
// read. The instruction set with dot products of bfloat16 multiplies these alone, in pairs along K,
// which are put beside each other as they are read.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/epilogue.h"
#ifdef NPUSIM_BASE_ISA
#include "kernels/cpu/gemm_tile_bf16.h"
#endif

namespace npusim::cpu::NPUSIM_ISA {

#ifdef NPUSIM_BASE_ISA
using Element = bfloat16;
inline constexpr int32_t kElement = static_cast<int32_t>(abi::DType::kBfloat16);
template <typename F>
void with_operand_type(int32_t, F&& f) {
  f(Element{});
}
#else
using Element = float;
inline constexpr int32_t kElement = static_cast<int32_t>(abi::DType::kFloat32);
// Calls f with a value of the type that an operand is stored in.
template <typename F>
void with_operand_type(int32_t dtype, F&& f) {
  with_float_type(dtype, f);
}
#endif

inline constexpr int kPanel = 16;
inline constexpr int kPanelVecs = kPanel / kLanes;

// The largest tile: its accumulators, one row of B and a broadcast fill the register file.
#if defined(__AVX512F__)
inline constexpr int kTilePanels = 4;
constexpr int tile_rows(int panels) {
#ifdef NPUSIM_BASE_ISA
  return panels >= 3 ? 6 : 8;  // pairs are as fast so, and each form takes space
#else
  return panels >= 4 ? 6 : 8;
#endif
}
#elif defined(__AVX2__) || defined(__aarch64__)
inline constexpr int kTilePanels = 1;
constexpr int tile_rows(int) {
  return 6;
}
#else
inline constexpr int kTilePanels = 1;
constexpr int tile_rows(int) {
  return 2;
}
#endif
inline constexpr int kMaxTileRows = 8;
// Where a panel is two vectors: a last one of which no more than one has columns is multiplied by
// that alone, for more rows at a time, and one or two rows, whose sums of one panel would wait for
// each other, are multiplied by several panels at once.
inline constexpr bool kPairsOfVectors = kTilePanels == 1 && kPanelVecs == 2;
inline constexpr int kHalfTileRows = 8;  // their pointers fill the general registers
constexpr int widest_group(int64_t rows) {
  if (kPairsOfVectors && rows == 1) return 4;
  if (kPairsOfVectors && rows == 2) return 2;
  return kTilePanels;
}
// Whether a tile reads 16-bit weights as they are stored. Widening takes two instructions a vector
// and none of the two units that multiply and add; six rows leave that much time.
inline constexpr bool kWidensInTile = kLanes == 8;
// Tiles over which the fetching of a panel to come is spread. A narrow tile is done with a row of B
// long before memory has brought another one.
inline constexpr int kFetchTiles = kTilePanels == 1 ? 4 : 1;
inline constexpr int kSumsStride = kTilePanels * kPanel;
// Floats from a row of sums of V vectors to the next, and all sums of the few rows above.
constexpr int sums_stride(int vectors) {
  return std::max(kSumsStride, vectors * kLanes);
}
inline constexpr int64_t kFewSums = kPairsOfVectors ? 4 * kPanel : 0;

// Row r is at[r][0 … run), at[stride + r][0 … run), …: one run a tap.
struct Rows {
  const Element* const* at = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t taps = 1;
  int64_t run = 0;
  const int64_t* tap_k = nullptr;  // [taps]: where each begins along K
  const Element* zeros = nullptr;  // what runs that are all zero, a convolution's padding, point to
};

// B of `k` rows of elements of a float dtype: panel p begins at element p * k * kPanel. Where these
// are no Elements, `widened` has room for widened_elements(…), and `tap_k` for all taps; tiles that
// widen them for themselves need neither.
struct Panels {
  const void* data = nullptr;
  int64_t k = 0;
  int32_t dtype = kElement;
  Element* widened = nullptr;
  int64_t* tap_k = nullptr;
};

// check() of an operand that pack_b wrote.
inline const char* check_panels(const KernelCheck& c, size_t operand, int64_t groups, int64_t n,
                                int64_t k, int32_t dtype) {
  if (!is_float(dtype)) return "the packed operand is not a float of 32 or 16 bits";
  if (n < 0 || n > INT64_MAX - kPanel) return "a size is negative or too large";
  const int64_t sizes[] = {groups, (n + kPanel - 1) / kPanel, k, kPanel};
  return Region().dim(product(sizes, 4), 1).reads(c, operand, element_size(dtype));
}

// The part of K that one pass covers: columns [begin, end) of taps [tap, tap_end).
struct KBlock {
  int64_t tap, tap_end, begin, end;
};

// Finishing in registers: y = clamp(sum + bias + residual), y of Elements and the others float;
// only floats have a residual. Row offsets as in Output.
struct LinearOutput {
  Element* y;
  const int64_t* y_rows;
  const float* bias;
  const float* residual;
  const int64_t* r_rows;
  Range range;
  int64_t last = 0;  // columns of the last vector, where that is not whole
};

inline LinearOutput linear_output(const Output& out, int64_t row, int64_t column) {
  const bool added = out.residual_mode != kNoResidual;
  return {.y = static_cast<Element*>(out.y) + column,
          .y_rows = out.y_rows + row,
          .bias = out.bias ? out.bias + column : nullptr,
          .residual = added ? static_cast<const float*>(out.residual) + column : nullptr,
          .r_rows = added ? out.r_rows + row : nullptr,
          .range = range_of(out)};
}

struct Tile {
  const Element* const* at;  // of the tile's first row and the block's first tap
  int64_t stride;
  const int64_t* tap_k;  // of the block's first tap
  int64_t taps, begin, run;
  const void* b;  // of the tile's first panel
  int64_t panel_stride;
  float* sums;                     // [rows][sums_stride(…)]
  bool add_to_sums;                // continue from sums instead of zero
  const LinearOutput* output;      // nullptr: leave the result in sums
  const Element* zeros = nullptr;  // as of Rows
  const char* prefetch = nullptr;  // what to bring near: a kFetchTiles-th of a row of B a step
};

// Copies `n` floats out of their storage type.
template <typename T>
inline const float* widen(const T* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  for (; i < n; ++i) to[i] = to_float(from[i]);
  return to;
}

template <typename X>
Element as_element(X x) {
  if constexpr (std::is_same_v<X, Element>) {
    return x;
  } else {
    return to_float(x);
  }
}
template <typename X>
void copy_elements(const X* from, Element* to, int64_t n) {
  if constexpr (std::is_same_v<X, Element>) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(X));
  } else {
    widen(from, to, n);
  }
}

#ifdef NPUSIM_BASE_ISA
// Numbers below the least normal one become 0.
inline __m256i rounded(Vec v) {
  return (__m256i)_mm512_cvtneps_pbh((__m512)v);
}
inline Vec within(Vec v, Vec lo, Vec hi) {  // or NaN
  const __m512 above = _mm512_maskz_max_ps(0xFFFF, (__m512)lo, (__m512)v);
  return (Vec)_mm512_maskz_min_ps(0xFFFF, (__m512)hi, above);
}

inline bool finishes_in_registers(const Output& out) {
  return has_range(out) && out.residual_mode == kNoResidual && out.more == 0 &&
         out.y_dtype == kElement;
}

template <int R, int V>
inline void finish_tile(const Vec (&acc)[R][V], const LinearOutput& out) {
  const Vec lo = broadcast(out.range.lo), hi = broadcast(out.range.hi);
  Vec bias[V];
  for (int v = 0; v < V; ++v) bias[v] = out.bias ? load(out.bias + v * kLanes) : broadcast(-0.0F);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    Element* y = out.y + out.y_rows[r];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const __m256i half = rounded(within(acc[r][v] + bias[v], lo, hi));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + v * kLanes), half);
    }
  }
}
#else
inline bool finishes_in_registers(const Output& out) {
  return is_plain(out);
}

// Stores the first n < kLanes floats of v: in three pieces, as a masked store takes as long as a
// dozen of them on some processors.
[[maybe_unused]] inline void store_few(float* y, Vec v, int64_t n) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  __m128 left = _mm256_castps256_ps128((__m256)v);
  if (n & 4) {
    _mm_storeu_ps(y, left);
    left = _mm256_extractf128_ps((__m256)v, 1);
    y += 4;
  }
  if (n & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(y), left);
    left = _mm_movehl_ps(left, left);
    y += 2;
  }
  if (n & 1) _mm_store_ss(y, left);
#else
  store_part(y, v, n);
#endif
}

// As below, of a last vector that has out.last columns.
template <int R, int V>
[[gnu::noinline]] void finish_part(const Vec (&acc)[R][V], const LinearOutput& out) {
  const Vec lo = broadcast(out.range.lo), hi = broadcast(out.range.hi);
  constexpr int kLast = (V - 1) * kLanes;
  const Vec bias = out.bias ? load_part(out.bias + kLast, out.last) : broadcast(-0.0F);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* y = out.y + out.y_rows[r];
    const float* residual = out.residual ? out.residual + out.r_rows[r] : nullptr;
#pragma GCC unroll 8
    for (int v = 0; v < V - 1; ++v) {
      Vec sum = acc[r][v];
      if (out.bias) sum += load(out.bias + v * kLanes);
      if (residual) sum += load(residual + v * kLanes);
      store(y + v * kLanes, clamp(sum, lo, hi));
    }
    Vec sum = acc[r][V - 1] + bias;  // -0 changes no sum
    if (residual) sum += load_part(residual + kLast, out.last);
    store_few(y + kLast, clamp(sum, lo, hi), out.last);
  }
}

template <int R, int V>
inline void finish_tile(const Vec (&acc)[R][V], const LinearOutput& out) {
  if constexpr (kPairsOfVectors && V <= kPanelVecs) {
    if (out.last > 0) {
      Vec sums[R][V];  // a copy, so that acc itself need not lie in memory
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sums[r][v] = acc[r][v];
      }
      return finish_part(sums, out);
    }
  }
  const Vec lo = broadcast(out.range.lo), hi = broadcast(out.range.hi);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* y = out.y + out.y_rows[r];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      Vec sum = acc[r][v];
      if (out.bias) sum += load(out.bias + v * kLanes);
      if (out.residual) sum += load(out.residual + out.r_rows[r] + v * kLanes);
      store(y + v * kLanes, clamp(sum, lo, hi));
    }
  }
}
#endif

// Rows of bfloat16 panels are widened to the lower halves of both vectors and to the upper ones, by
// an instruction each; `in_order` puts columns, or sums of them, into their order and back.
template <typename B, int V>
inline constexpr bool kInHalves =
    kWidensInTile && V % kPanelVecs == 0 && std::is_same_v<B, bfloat16>;

#if defined(__AVX2__) && !defined(__AVX512F__)
inline void load_halves(const bfloat16* b, Vec* row) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
  row[0] = (Vec)_mm256_unpacklo_epi16(__m256i{}, halves);
  row[1] = (Vec)_mm256_unpackhi_epi16(__m256i{}, halves);
}
template <int V>
inline void in_order(Vec (&sums)[V]) {
#pragma GCC unroll 8
  for (int v = 0; v < V; v += 2) {
    const __m256 a = (__m256)sums[v], b = (__m256)sums[v + 1];
    sums[v] = (Vec)_mm256_permute2f128_ps(a, b, 0x20);
    sums[v + 1] = (Vec)_mm256_permute2f128_ps(a, b, 0x31);
  }
}
#endif

// A row of panels that are `stride` apart, widened, in the order that sums are kept in.
template <int V, typename B>
inline void load_row(const B* b, int64_t stride, Vec (&row)[V]) {
  if constexpr (kInHalves<B, V>) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v += kPanelVecs) load_halves(b + v / kPanelVecs * stride, row + v);
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      row[v] = load(b + v / kPanelVecs * stride + v % kPanelVecs * kLanes);
    }
  }
}

#ifdef NPUSIM_BASE_ISA
// Two rows of a panel beside each other, as pairs.
template <int... I>
inline BVec paired(BVec rows, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(rows, rows, (I / 2 + I % 2 * kPanel)...);
#else
  return __builtin_shuffle(rows, BVec{(I / 2 + I % 2 * kPanel)...});
#endif
}

// A last row of a run that has no partner is taken with one of zeros, in a second turn.
template <int R, int V>
inline void add_products(const Tile& tile, const Element* const (&row)[R], const Element* b,
                         const char*& soon, Vec (&acc)[R][V]) {
  static constexpr auto kLane = std::make_integer_sequence<int, kPairLanes>{};
  const Element* a[R];
  std::copy_n(row, R, a);
  Element last_a[2 * R] = {}, last_b[2 * V * kPanel] = {};
  int64_t stride = tile.panel_stride, pairs = tile.run / 2;
  for (bool odd = tile.run % 2;; odd = false) {
    for (int64_t k = 0; k < pairs; ++k, b += 2 * kPanel, soon += 2 * kPanel * sizeof *b) {
      __builtin_prefetch(soon, 0, 2);
      BVec both[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) both[v] = paired(load_pairs(b + v * stride), kLane);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const BVec x = broadcast_pair(a[r] + 2 * k);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = dot_pairs(acc[r][v], x, both[v]);
      }
    }
    if (!odd) return;
    for (int r = 0; r < R; ++r) {
      last_a[2 * r] = a[r][2 * pairs];
      a[r] = last_a + 2 * r;
    }
    for (int v = 0; v < V; ++v) std::copy_n(b + v * stride, kPanel, last_b + 2 * v * kPanel);
    b = last_b;
    stride = 2 * kPanel;
    pairs = 1;
  }
}
#else
template <int R, int V, typename B>
inline void add_products(const Tile& tile, const Element* const (&a)[R], const B* b,
                         const char*& soon, Vec (&acc)[R][V]) {
  constexpr int64_t kFetched = kPanel / kFetchTiles * sizeof(B);
  for (int64_t k = 0; k < tile.run; ++k, b += kPanel, soon += kFetched) {
    __builtin_prefetch(soon, 0, 2);
    Vec row[V];
    load_row(b, tile.panel_stride, row);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec x = broadcast(a[r][k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[r][v] += x * row[v];
    }
  }
}
#endif

// Whether all rows of a tile read padding.
template <int R>
inline bool are_zeros(const Element* const* at, const Element* zeros) {
  if constexpr (R == 1) return false;  // one row has nothing to save
  bool all = at[0] == zeros;
#pragma GCC unroll 8
  for (int r = 1; r < R; ++r) all &= at[r] == zeros;
  return all;
}

// Products of zeros are the same for all rows: zero, or NaN where a weight is not finite. They
// begin with -0, which adds nothing to any sum, so that sums are what products of each row had made
// them.
template <int R, int V, typename B>
inline void add_zeros(const Tile& tile, const B* b, const char*& soon, Vec (&acc)[R][V]) {
  constexpr int64_t kFetched = kPanel / kFetchTiles * sizeof(B);
  const Vec zero{};
  Vec sum[V];
  for (int v = 0; v < V; ++v) sum[v] = broadcast(-0.0F);
  for (int64_t k = 0; k < tile.run; ++k, b += kPanel, soon += kFetched) {
    __builtin_prefetch(soon, 0, 2);
    Vec row[V];
    load_row(b, tile.panel_stride, row);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[v] += zero * row[v];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] += sum[v];
  }
}

template <int R, int V, typename B>
[[gnu::noinline]] void multiply_tile(const Tile& tile) {
  constexpr int kStride = sums_stride(V);
  Vec acc[R][V] = {};
  if (tile.add_to_sums) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[r][v] = load(tile.sums + r * kStride + v * kLanes);
      if constexpr (kInHalves<B, V>) in_order(acc[r]);
    }
  }
  const B* panel = static_cast<const B*>(tile.b);
  const char* soon = tile.prefetch ? tile.prefetch : static_cast<const char*>(tile.b);
  for (int64_t t = 0; t < tile.taps; ++t) {
    const Element* const* at = tile.at + t * tile.stride;
    const B* b = panel + (tile.tap_k[t] + tile.begin) * kPanel;
    if (are_zeros<R>(at, tile.zeros)) {
      add_zeros(tile, b, soon, acc);
      continue;
    }
    const Element* a[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a[r] = at[r] + tile.begin;
    add_products<R, V>(tile, a, b, soon, acc);
  }
  if constexpr (kInHalves<B, V>) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) in_order(acc[r]);
  }
  if (tile.output) return finish_tile<R, V>(acc, *tile.output);
  float* sums = tile.sums;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + r * kStride + v * kLanes, acc[r][v]);
  }
}

using TileFunction = void (*)(const Tile&);

template <typename B, int V, int... R>
constexpr TileFunction pick_tile(int rows, std::integer_sequence<int, R...>) {
  constexpr TileFunction functions[] = {multiply_tile<R + 1, V, B>...};
  return functions[rows - 1];
}

template <typename B>
inline TileFunction tile_function(int rows, int vectors) {
  const auto pick = [rows]<int P>(std::integral_constant<int, P>) {
    return pick_tile<B, P * kPanelVecs>(rows, std::make_integer_sequence<int, tile_rows(P)>{});
  };
  if constexpr (kPairsOfVectors) {
    if (vectors == 1) {
      return pick_tile<B, 1>(rows, std::make_integer_sequence<int, kHalfTileRows>{});
    }
    if (vectors > 4) return vectors == 8 ? multiply_tile<1, 8, B> : multiply_tile<1, 6, B>;
    if (vectors == 4) return rows == 2 ? multiply_tile<2, 4, B> : multiply_tile<1, 4, B>;
  }
  if constexpr (kTilePanels > 1) {
    if (vectors == 4 * kPanelVecs) return pick(std::integral_constant<int, 4>{});
    if (vectors == 3 * kPanelVecs) return pick(std::integral_constant<int, 3>{});
    if (vectors == 2 * kPanelVecs) return pick(std::integral_constant<int, 2>{});
  }
  return pick(std::integral_constant<int, 1>{});
}

// Of tiles that multiply by a B as stored in `dtype`, or widened.
template <bool InTile = kWidensInTile>
inline TileFunction tile_function(int rows, int vectors, [[maybe_unused]] int32_t dtype) {
  if constexpr (InTile) {
    return with_float_type(dtype, [=]<typename B>(B) { return tile_function<B>(rows, vectors); });
  } else {
    return tile_function<Element>(rows, vectors);
  }
}

// Splits `total` into the fewest parts of at most `limit`, as equal as can be.
struct Split {
  int64_t total, parts;
  Split(int64_t total, int64_t limit) : total(total), parts((total + limit - 1) / limit) {}
  // Where part `part` of `parts` begins, for any number of parts.
  static int64_t even(int64_t total, int64_t parts, int64_t part) {
    return part * (total / parts) + std::min(part, total % parts);
  }
  int64_t largest() const { return parts ? (total + parts - 1) / parts : 0; }
  int64_t begin(int64_t part) const { return even(total, parts, part); }
};

// Cuts a GEMM into cells of one row block by some panels, and cells into tasks. A function of
// the GEMM alone, so that a task means the same to whoever runs it.
class TaskGrid {
 public:
  static constexpr int64_t kSmall = int64_t{1} << 18;  // multiply-adds not worth a second worker
  static constexpr int64_t kTask = int64_t{1} << 20;   // multiply-adds that a task should have
  static constexpr int64_t kFewRows = 8;               // fewer still wait for B as long as these
  static constexpr int64_t kTasks = 48;                // tasks beyond this serve nobody

  // `whole_rows`: making a row block ready costs too much to do it once a column block.
  TaskGrid(int64_t row_blocks, int64_t rows, int64_t columns, int64_t k, bool whole_rows = false)
      : row_blocks_(row_blocks), panels_((columns + kPanel - 1) / kPanel) {
    const double work = static_cast<double>(std::max(rows, kFewRows)) *
                        static_cast<double>(columns) * static_cast<double>(k);
    if (row_blocks == 0 || panels_ == 0) return;
    serial_ = work < kSmall;
    rows_first_ = whole_rows || rows > columns;
    column_blocks_ = serial_ || (whole_rows && row_blocks > 1) ? 1 : cuts(work / kTask);
  }
  int64_t count() const { return serial_ ? std::min<int64_t>(1, cells()) : cells(); }

  // Calls f(row block, first panel, end panel) for the cells of tasks [begin, end), neighbours
  // sharing the larger operand.
  template <typename F>
  void for_each(int64_t begin, int64_t end, F&& f) const {
    if (serial_) end = begin < end ? cells() : 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = rows_first_ ? i / column_blocks_ : i % row_blocks_;
      const int64_t column = rows_first_ ? i % column_blocks_ : i / row_blocks_;
      f(row, first_panel(column), first_panel(column + 1));
    }
  }

 private:
  static constexpr int64_t kUneven = 8;  // so many cells or more need not be alike

  int64_t cells() const { return row_blocks_ * column_blocks_; }
  int64_t groups() const { return (panels_ + kTilePanels - 1) / kTilePanels; }

  // Column blocks for so many tasks: two at least of what two workers can share, and an even number
  // of cells where there are few, lest one of the workers wait for the other's last.
  int64_t cuts(double tasks) const {
    const int64_t wanted = static_cast<int64_t>(std::min(tasks, double{kTasks}));
    const int64_t groups = this->groups();
    int64_t cuts = std::clamp(wanted / row_blocks_, int64_t{1}, groups);
    if (cuts >= kUneven) return Split(groups, (groups + cuts - 1) / cuts).parts;
    if (row_blocks_ * cuts < kUneven && row_blocks_ * cuts % 2 == 1) ++cuts;
    return std::min(cuts, panels_);
  }

  // Few column blocks, and more than tiles, are as equal as panels allow; others are whole tiles.
  int64_t first_panel(int64_t column) const {
    if (column_blocks_ < kUneven || column_blocks_ > groups())
      return Split::even(panels_, column_blocks_, column);
    return std::min(column * groups() / column_blocks_ * kTilePanels, panels_);
  }

  int64_t row_blocks_, panels_, column_blocks_ = 0;
  bool serial_ = false, rows_first_ = false;
};

// How many columns of K one pass covers: a group's share of B then stays in the near cache.
inline constexpr int64_t kBlockK = 1024;

// The passes over K. Runs longer than kBlockK are cut; shorter ones are taken several at a time.
class KBlocks {
 public:
  KBlocks(int64_t taps, int64_t run)
      : taps_(taps),
        run_(run),
        within_(run, kBlockK),
        across_(taps, std::max<int64_t>(1, kBlockK / std::max<int64_t>(run, 1))) {}
  int64_t count() const {
    if (taps_ == 0) return 1;  // nothing to add, but a result to write
    return within_.parts > 1 ? taps_ * within_.parts : across_.parts;
  }
  KBlock operator[](int64_t i) const {
    if (taps_ == 0) return {0, 0, 0, 0};
    if (within_.parts <= 1) return {across_.begin(i), across_.begin(i + 1), 0, run_};
    const int64_t tap = i / within_.parts, part = i % within_.parts;
    return {tap, tap + 1, within_.begin(part), within_.begin(part + 1)};
  }

 private:
  int64_t taps_, run_;
  Split within_, across_;
};

// Floats of scratch that multiply_rows needs for `rows` rows.
inline int64_t sums_floats(int64_t rows, int64_t taps, int64_t run) {
  const int64_t kept =
      KBlocks(taps, run).count() > 1 ? rows : std::min<int64_t>(rows, kMaxTileRows);
  return kPairsOfVectors ? std::max(kept * kSumsStride, kFewSums) : kept * kSumsStride;
}

// Elements that the panels of a B need that has none.
inline int64_t widened_elements(int32_t dtype, int64_t taps, int64_t run) {
  if (dtype == kElement || kWidensInTile) return 0;
  return kSumsStride * std::min(taps * run, kBlockK);
}

// Widens the rows of B that a block of K covers, tap by tap, and says where the taps begin then.
inline void widen_block(const Rows& a, const Panels& b, const KBlock& block, int64_t panel,
                        int panels) {
  const int64_t run = block.end - block.begin, rows = (block.tap_end - block.tap) * run;
  with_operand_type(b.dtype, [&]<typename B>(B) {
    for (int p = 0; p < panels; ++p) {
      const B* from = static_cast<const B*>(b.data) + (panel + p) * b.k * kPanel;
      for (int64_t t = block.tap; t < block.tap_end; ++t) {
        copy_elements(from + (a.tap_k[t] + block.begin) * kPanel,
                      b.widened + (p * rows + (t - block.tap) * run) * kPanel, run * kPanel);
      }
    }
  });
  for (int64_t t = block.tap; t < block.tap_end; ++t) {
    b.tap_k[t] = (t - block.tap) * run - block.begin;
  }
}

#ifdef NPUSIM_BASE_ISA
// The first lanes of v, as the mask says.
inline void store_lanes(bfloat16* y, Vec v, __mmask16 lanes) {
  if (lanes == 0xFFFF) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), rounded(v));
  _mm256_mask_storeu_epi16(y, lanes, rounded(v));
}
inline void store_lanes(float* y, Vec v, __mmask16 lanes) {
  _mm512_mask_storeu_ps(y, lanes, (__m512)v);
}
inline Vec load_lanes(const bfloat16* x, __mmask16 lanes) {
  const __m256i half = _mm256_maskz_loadu_epi16(lanes, x);
  return as_float((UVec)_mm512_maskz_cvtepu16_epi32(0xFFFF, half) << 16);
}
inline Vec load_lanes(const float* x, __mmask16 lanes) {
  return (Vec)_mm512_maskz_loadu_ps(lanes, x);
}

// Bias, residual and a range alone.
template <typename Y, typename X>
void finish_range(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns,
                  const float* sums) {
  const auto [low, high] = range_of(out);
  const Vec lo = broadcast(low), hi = broadcast(high);
  const int vectors = static_cast<int>((columns + kLanes - 1) / kLanes);
  Vec bias[kTilePanels];
  __mmask16 lanes[kTilePanels];
  for (int v = 0; v < vectors; ++v) {
    lanes[v] = static_cast<__mmask16>(~(~0u << std::min<int64_t>(columns - v * kLanes, kLanes)));
    bias[v] = broadcast(-0.0F);  // which changes no sum
    if (out.bias) bias[v] = load_lanes(out.bias + column + v * kLanes, lanes[v]);
  }
  const auto each_row = [&](auto&& add) __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r, sums += kSumsStride) {
      Y* y = static_cast<Y*>(out.y) + out.y_rows[row + r] + column;
      for (int v = 0; v < vectors; ++v) {
        const Vec sum = add(load(sums + v * kLanes) + bias[v], r, v);
        store_lanes(y + v * kLanes, within(sum, lo, hi), lanes[v]);
      }
    }
  };
  if (out.residual_mode == kNoResidual) {
    return each_row([](Vec sum, int64_t, int) __attribute__((always_inline)) { return sum; });
  }
  const X* residual = static_cast<const X*>(out.residual) + column;
  each_row([&](Vec sum, int64_t r, int v) __attribute__((always_inline)) {
    return sum + load_lanes(residual + out.r_rows[row + r] + v * kLanes, lanes[v]);
  });
}

inline void finish_sums(const Output& out, int64_t row, int64_t rows, int64_t column,
                        int64_t columns, const float* sums) {
  const bool plain = out.residual_mode != kAfterActivation && has_range(out) && out.more == 0;
  const auto known = [](int32_t dtype) { return dtype == 0 || dtype == kElement; };
  if (!plain || !known(out.y_dtype) || !known(out.r_dtype)) {
    return finish(out, row, rows, column, columns, sums, kSumsStride);
  }
  const bool wide = out.y_dtype == 0, wide_residual = out.r_dtype == 0;
  const auto function =
      wide            ? wide_residual ? finish_range<float, float> : finish_range<float, Element>
      : wide_residual ? finish_range<Element, float>
                      : finish_range<Element, Element>;
  function(out, row, rows, column, columns, sums);
}
#else
static_assert(!kFinishesWhole || kSumsStride == kFinishedColumns);
inline void finish_sums(const Output& out, int64_t row, int64_t rows, int64_t column,
                        int64_t columns, float* sums) {
  if constexpr (kFinishesWhole) {
    if (columns == kSumsStride && finishes_whole(out)) {
      return finish_whole(out, row, rows, column, sums);
    }
  }
  finish(out, row, rows, column, columns, sums, kSumsStride);
}
#endif

// One group of panels against all rows; see multiply_rows. Without `out`, leaves the products in
// sums[row][kSumsStride]. `next` is what will be multiplied by afterwards.
inline void multiply_group(const Rows& a, const Panels& b, int64_t panel, int panels,
                           const Output* out, float* sums, const char* next) {
  const int64_t column = panel * kPanel;
  const int64_t columns = out ? std::min<int64_t>(panels * kPanel, out->columns - column) : 0;
  const bool half = kPairsOfVectors && out && columns <= kLanes;
  const int vectors = half ? 1 : panels * kPanelVecs;
  const bool whole = columns == vectors * kLanes;
  const bool finishes_part = kPairsOfVectors && vectors <= kPanelVecs &&
                             columns > (vectors - 1) * kLanes && out && has_range(*out);
  const bool in_registers = out && (whole || finishes_part) && finishes_in_registers(*out);
  const bool widens = b.dtype != kElement && !kWidensInTile;
  const auto* data = static_cast<const char*>(b.data);
  const int64_t row_bytes = kPanel * element_size(b.dtype);
  const KBlocks blocks(a.taps, a.run);
  const Split tiles(a.count, half ? kHalfTileRows : tile_rows(panels));
  for (int64_t i = 0; i < blocks.count(); ++i) {
    const KBlock block = blocks[i];
    const bool last = i + 1 == blocks.count();
    const char* soon = nullptr;
    if (widens) {
      widen_block(a, b, block, panel, panels);
    } else {
      soon = next;
      if (!last) {
        soon = data + (panel * b.k + a.tap_k[blocks[i + 1].tap] + blocks[i + 1].begin) * row_bytes;
      }
    }
    const int64_t run = block.end - block.begin, taps = block.tap_end - block.tap;
    for (int64_t t = 0; t < tiles.parts; ++t) {
      const int64_t row = tiles.begin(t), rows = tiles.begin(t + 1) - row;
      const bool keep = blocks.count() > 1 || !out;
      const int64_t fetched = t / kFetchTiles * b.k + t % kFetchTiles * taps * run / kFetchTiles;
      LinearOutput linear;
      Tile tile{
          .at = a.at + block.tap * a.stride + row,
          .stride = a.stride,
          .tap_k = (widens ? b.tap_k : a.tap_k) + block.tap,
          .taps = taps,
          .begin = block.begin,
          .run = run,
          .b = data + panel * b.k * row_bytes,
          .panel_stride = b.k * kPanel,
          .sums = keep ? sums + row * kSumsStride : sums,
          .add_to_sums = i > 0,
          .output = nullptr,
          .zeros = a.zeros,
          .prefetch = soon && t < panels * kFetchTiles ? soon + fetched * row_bytes : nullptr};
      if (widens) {
        tile.b = b.widened;
        tile.panel_stride = taps * run * kPanel;
      }
      if (last && in_registers) {
        linear = linear_output(*out, row, column);
        if (!whole) linear.last = columns % kLanes;
        tile.output = &linear;
      }
      tile_function(static_cast<int>(rows), vectors, b.dtype)(tile);
      if (tile.output && !has_range(*out)) activate_rows(*out, row, rows, column, columns);
      if (!last || !out || in_registers) continue;
      if (!kPairsOfVectors || sums_stride(vectors) == kSumsStride) {
        finish_sums(*out, row, rows, column, columns, tile.sums);
      } else {
        finish(*out, row, rows, column, columns, tile.sums, sums_stride(vectors));
      }
    }
  }
}

// out = finish(A · B) for the columns of panels [begin, end). `sums`: sums_floats(…) floats.
inline void multiply_rows(const Rows& a, const Panels& b, int64_t begin, int64_t end,
                          const Output& out, float* sums) {
  const Split groups(end - begin, widest_group(a.count));
  for (int64_t g = 0; g < groups.parts; ++g) {
    const int64_t panel = begin + groups.begin(g);
    const int64_t panel_end = begin + groups.begin(g + 1);
    // The group after the last one is the next task's: if not this worker's, then for the cache
    // that the workers share.
    const bool more = panel_end * kPanel < out.columns;
    multiply_group(a, b, panel, static_cast<int>(panel_end - panel), &out, sums,
                   static_cast<const char*>(b.data) +
                       (more ? panel_end : panel) * b.k * kPanel * element_size(b.dtype));
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
