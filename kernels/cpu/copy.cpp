// y[i] = x[i] between any strides. Dimensions are put in the order of y's memory and merged; what
// remains is one of three walks over blocks of about 32 KiB: rows contiguous on both sides, a
// transposition (x contiguous along one dimension, y along another) done in registers, square by
// square, or elements one by one.
#include "kernels/cpu/check.h"
#include "kernels/cpu/simd.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::CopyParams;

constexpr int64_t kBlockBytes = 32768;
constexpr int64_t kColumnBytes = 256;  // of the rows of y in a transposed block
// Less is not worth a second worker's attention.
constexpr int64_t kAloneBytes = 4 * kBlockBytes;

struct Dim {
  int64_t size, x, y;  // strides in elements
};

enum class Walk { kRows, kTranspose, kElements };

// The copy as blocks of a two-dimensional core under outer dimensions.
struct Plan {
  Walk walk = Walk::kElements;
  int rank = 0;  // of the outer dimensions
  Dim dims[abi::kRank];
  Dim a{1, 0, 0}, b{1, 1, 1};  // the core; b is y's innermost dimension
  int64_t a_block = 1, b_block = 1;
  int64_t a_blocks = 1, b_blocks = 1;
  int64_t blocks = 0;  // in all
};

int64_t magnitude(int64_t x) {
  return x < 0 ? -x : x;
}
int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Fills dims with p's dimensions, y's largest stride first, neighbours merged; returns how many.
int normalize(const Params& p, Dim* dims) {
  int rank = 0;
  for (int d = 0; d < p.rank; ++d) {
    if (p.shape[d] == 1) continue;
    int at = rank++;
    for (; at > 0 && magnitude(dims[at - 1].y) < magnitude(p.y_strides[d]); --at)
      dims[at] = dims[at - 1];
    dims[at] = {p.shape[d], p.x_strides[d], p.y_strides[d]};
  }
  int merged = 0;
  for (int d = 0; d < rank; ++d) {
    Dim* outer = merged ? &dims[merged - 1] : nullptr;
    const Dim& inner = dims[d];
    if (outer && outer->x == inner.x * inner.size && outer->y == inner.y * inner.size) {
      *outer = {outer->size * inner.size, inner.x, inner.y};
    } else {
      dims[merged++] = inner;
    }
  }
  return merged;
}

Dim take(Plan& plan, int d) {
  const Dim taken = plan.dims[d];
  for (--plan.rank; d < plan.rank; ++d) plan.dims[d] = plan.dims[d + 1];
  return taken;
}

// Chooses the core and how to walk it.
void choose_walk(Plan& plan) {
  if (plan.rank == 0) {
    plan.walk = Walk::kRows;
    return;
  }
  plan.b = take(plan, plan.rank - 1);
  int along = plan.rank - 1;
  if (plan.b.y == 1 && plan.b.x == 1) {
    plan.walk = Walk::kRows;
  } else if (plan.b.y == 1) {
    for (int d = plan.rank - 1; d >= 0; --d) {
      if (plan.dims[d].x != 1) continue;
      plan.walk = Walk::kTranspose;
      along = d;
      break;
    }
  }
  if (plan.rank > 0) plan.a = take(plan, along);
}

void choose_blocks(Plan& plan, int64_t element_size) {
  const int64_t elements = kBlockBytes / element_size;
  if (plan.walk == Walk::kTranspose) {
    // Whole cache lines on both sides; few enough rows that their lines stay in the cache.
    plan.b_block = smaller(plan.b.size, kColumnBytes / element_size);
    plan.a_block = smaller(plan.a.size, elements / plan.b_block);
  } else {
    plan.b_block = smaller(plan.b.size, elements);
    plan.a_block = smaller(plan.a.size, elements / plan.b_block);
  }
  plan.a_blocks = (plan.a.size - 1) / plan.a_block + 1;
  plan.b_blocks = (plan.b.size - 1) / plan.b_block + 1;
  plan.blocks = plan.a_blocks * plan.b_blocks;
  for (int d = 0; d < plan.rank; ++d) plan.blocks *= plan.dims[d].size;
}

Plan make_plan(const Params& p) {
  Plan plan;
  for (int d = 0; d < p.rank; ++d) {
    if (p.shape[d] == 0) return plan;
  }
  plan.rank = normalize(p, plan.dims);
  choose_walk(plan);
  choose_blocks(plan, p.element_size);
  return plan;
}

// ---- blocks: rows x columns elements at x and y, rows along dimension a, columns along b

template <typename T>
void copy_rows(const Plan& plan, const T* x, T* y, int64_t rows, int64_t columns) {
  const auto bytes = static_cast<size_t>(columns) * sizeof(T);
  for (int64_t r = 0; r < rows; ++r, x += plan.a.x, y += plan.a.y) {
    if (bytes >= 32) {
      std::memcpy(y, x, bytes);
    } else {
      for (int64_t c = 0; c < columns; ++c) y[c] = x[c];
    }
  }
}

template <typename T>
void copy_elements(const Plan& plan, const T* x, T* y, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, x += plan.a.x, y += plan.a.y) {
    if (plan.b.x == 0 && plan.b.y == 1) {
      const T value = *x;
      for (int64_t c = 0; c < columns; ++c) y[c] = value;
    } else {
      for (int64_t c = 0; c < columns; ++c) y[c * plan.b.y] = x[c * plan.b.x];
    }
  }
}

template <int... kIndices>
struct Indices {};
template <int kCount, int... kIndices>
struct MakeIndices : MakeIndices<kCount - 1, kCount - 1, kIndices...> {};
template <int... kIndices>
struct MakeIndices<0, kIndices...> {
  using type = Indices<kIndices...>;
};

// The first (kHigh 0) or second half of a and b, interleaved.
template <int kHigh, typename V, int... kIndices>
V interleave(V a, V b, Indices<kIndices...>) {
  constexpr int n = sizeof...(kIndices);
  return __builtin_shufflevector(a, b, (kHigh * n / 2 + kIndices / 2 + kIndices % 2 * n)...);
}

// Transposes the n x n elements at x (rows x_step apart) to y. Interleaving row i with row i + n/2
// rotates the index bits by one; after log2 n rounds, rows and columns have changed places.
template <typename T>
void transpose_square(const T* x, int64_t x_step, T* y, int64_t y_step) {
  constexpr int n = 16 / sizeof(T);
  using V = VectorOf<T, n>;
  using All = typename MakeIndices<n>::type;
  typename V::type rows[n], next[n];
  for (int i = 0; i < n; ++i)
    rows[i] = *reinterpret_cast<const typename V::unaligned*>(x + i * x_step);
  for (int round = 1; round < n; round *= 2) {
    for (int i = 0; i < n / 2; ++i) {
      next[2 * i] = interleave<0>(rows[i], rows[i + n / 2], All{});
      next[2 * i + 1] = interleave<1>(rows[i], rows[i + n / 2], All{});
    }
    for (int i = 0; i < n; ++i) rows[i] = next[i];
  }
  for (int i = 0; i < n; ++i) *reinterpret_cast<typename V::unaligned*>(y + i * y_step) = rows[i];
}

// x is contiguous along a (rows of y), y along b. A strip is as many rows of y as a cache line of x
// has elements: its squares use up x's lines one after another and gather in a small buffer, from
// which whole lines go to y. Strides that are powers of two then fight over no cache set.
template <typename T>
void transpose(const Plan& plan, const T* x, T* y, int64_t rows, int64_t columns) {
  constexpr int64_t n = 16 / sizeof(T), kLine = 64 / sizeof(T), kMost = kColumnBytes / sizeof(T);
  const int64_t x_step = plan.b.x, y_step = plan.a.y;
  if (columns < n) {  // no square fits: images of three channels
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) y[r * y_step + c] = x[c * x_step + r];
    }
    return;
  }
  const int64_t full_columns = columns - columns % n;
  alignas(64) T strip[kLine * kMost];
  for (int64_t first = 0; first < rows; first += kLine) {
    const int64_t height = smaller(kLine, rows - first), full_rows = height - height % n;
    const T* from = x + first;
    for (int64_t c = 0; c < full_columns; c += n) {
      for (int64_t r = 0; r < full_rows; r += n)
        transpose_square(from + c * x_step + r, x_step, strip + r * kMost + c, kMost);
    }
    for (int64_t r = 0; r < height; ++r) {
      const int64_t done = r < full_rows ? full_columns : 0;
      for (int64_t c = done; c < columns; ++c) strip[r * kMost + c] = from[c * x_step + r];
    }
    for (int64_t r = 0; r < height; ++r) {
      T* to = y + (first + r) * y_step;
      if (columns == kMost) {
        std::memcpy(to, strip + r * kMost, kColumnBytes);
      } else {
        std::memcpy(to, strip + r * kMost, static_cast<size_t>(columns) * sizeof(T));
      }
    }
  }
}

template <typename T>
void copy_block(const Plan& plan, int64_t block, const T* x, T* y) {
  const int64_t b = block % plan.b_blocks * plan.b_block;
  block /= plan.b_blocks;
  const int64_t a = block % plan.a_blocks * plan.a_block;
  block /= plan.a_blocks;
  x += a * plan.a.x + b * plan.b.x;
  y += a * plan.a.y + b * plan.b.y;
  for (int d = plan.rank - 1; d >= 0; --d) {
    const int64_t at = block % plan.dims[d].size;
    block /= plan.dims[d].size;
    x += at * plan.dims[d].x;
    y += at * plan.dims[d].y;
  }
  const int64_t rows = smaller(plan.a_block, plan.a.size - a);
  const int64_t columns = smaller(plan.b_block, plan.b.size - b);
  if (plan.walk == Walk::kRows) return copy_rows(plan, x, y, rows, columns);
  if (plan.walk == Walk::kTranspose) return transpose(plan, x, y, rows, columns);
  copy_elements(plan, x, y, rows, columns);
}

template <typename T>
void copy_blocks(const Plan& plan, const KernelCall& call, int64_t first, int64_t last) {
  const T* x = static_cast<const T*>(call.operands[0]);
  T* y = static_cast<T*>(call.operands[1]);
  for (int64_t block = first; block < last; ++block) copy_block(plan, block, x, y);
}

// Blocks can be much smaller than kBlockBytes when the core is; a task takes several then.
int64_t blocks_per_task(const Plan& plan, int64_t element_size) {
  const int64_t bytes = plan.a_block * plan.b_block * element_size;
  if (plan.blocks <= kAloneBytes / bytes) return plan.blocks;
  return bytes >= kBlockBytes / 2 ? 1 : kBlockBytes / bytes;
}

int64_t count_tasks(const void* params, int64_t) {
  const Params& p = *static_cast<const Params*>(params);
  const Plan plan = make_plan(p);
  if (plan.blocks == 0) return 0;
  return (plan.blocks - 1) / blocks_per_task(plan, p.element_size) + 1;
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  const Plan plan = make_plan(p);
  if (plan.blocks == 0) return;
  const int64_t each = blocks_per_task(plan, p.element_size);
  const int64_t first = call.begin * each, last = smaller(call.end * each, plan.blocks);
  switch (p.element_size) {
    case 1:
      return copy_blocks<uint8_t>(plan, call, first, last);
    case 2:
      return copy_blocks<uint16_t>(plan, call, first, last);
    case 4:
      return copy_blocks<uint32_t>(plan, call, first, last);
    default:
      return copy_blocks<uint64_t>(plan, call, first, last);
  }
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  const int64_t size = p.element_size;
  if (size != 1 && size != 2 && size != 4 && size != 8) return "the element size is not 1, 2, 4, 8";
  if (p.rank < 0 || p.rank > abi::kRank) return "the rank is out of range";
  if (const char* why = Region().dims(p.shape, p.x_strides, p.rank).reads(c, 0, size)) return why;
  return Region().dims(p.shape, p.y_strides, p.rank).writes(c, 1, size);
}

int64_t scratch(const void*) {
  return 0;
}

}  // namespace

extern const KernelEntry copy_kernel;
const KernelEntry copy_kernel = {"copy", Params::kSchema, sizeof(Params), run,
                                 check,  count_tasks,     scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
