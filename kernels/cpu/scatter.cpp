// scatter: y[o, wrapped index tensors] (op)= src[o], the inverse of index.
// Equal indices collide, and the result must not depend on the number of workers: items are
// visited in row-major order by one task, unless a dimension of y that positions alone decide
// keeps the tasks apart whatever the indices are; then the work is split along that dimension.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/distinct.h"
#include "kernels/cpu/index_space.h"
#include "kernels/cpu/storage.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

constexpr int64_t kElementsPerTask = 32768;
constexpr int64_t kContiguousGrain = 64;

using Params = abi::ScatterParams;
enum Mode { kSet, kAdd, kMul, kMax, kMin, kModes };

int64_t elements(const Params& p) {
  int64_t count = 1;
  for (int d = 0; d < p.rank; ++d) count *= p.shape[d];
  return count;
}

// How the work is split: `grain` steps of dimension `dim` a task; dim -1: one task.
struct Split {
  int dim;
  int64_t grain;
};

// Positions and index values are the digits of y's address. If no two digit strings share an
// address, items that differ in one positional digit never meet.
Split split_of(const Params& p) {
  Digits digits;
  for (int d = 0; d < p.rank; ++d) {
    if (p.y_strides[d] != 0) digits.dim(p.shape[d], p.y_strides[d]);
  }
  for (int k = 0; k < p.n; ++k) digits.dim(extent(p.k_size[k]), p.k_stride[k]);
  if (!digits.distinct()) return {-1, 0};
  for (int d = 0; d < p.rank; ++d) {
    if (p.shape[d] < 2 || p.y_strides[d] == 0) continue;
    const int64_t others = elements(p) / p.shape[d];
    const int64_t grain = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, others));
    return {d, p.y_strides[d] == 1 ? std::max(grain, kContiguousGrain) : grain};
  }
  return {-1, 0};
}

template <typename N>
N add(N a, N b) {
  return a + b;
}
template <typename N>
N multiply(N a, N b) {
  return a * b;
}
// Integers wrap.
template <>
int64_t add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <>
int64_t multiply(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// One run: y[i * ys] = f(y[i * ys], src[i * ss]).
template <typename T, typename F>
inline void update(T* y, int64_t ys, const T* src, int64_t ss, int64_t run, F f) {
  using N = Number<T>;
  const auto step = [&](T& to, T from) { to = encode<T>(f(decode<N>(to), decode<N>(from))); };
  if (ys == 1 && ss == 1) {
    for (int64_t i = 0; i < run; ++i) step(y[i], src[i]);
    return;
  }
  for (int64_t i = 0; i < run; ++i) step(y[i * ys], src[i * ss]);
}

// NaN wins in max and min, as in PyTorch's scatter_reduce.
template <typename T>
void combine(int mode, void* to, int64_t ys, const void* from, int64_t ss, int64_t run) {
  auto* y = static_cast<T*>(to);
  const auto* src = static_cast<const T*>(from);
  switch (mode) {
    case kSet:
      for (int64_t i = 0; i < run; ++i) y[i * ys] = src[i * ss];
      return;
    case kAdd:
      return update(y, ys, src, ss, run, [](auto a, auto b) { return add(a, b); });
    case kMul:
      return update(y, ys, src, ss, run, [](auto a, auto b) { return multiply(a, b); });
    case kMax:
      return update(y, ys, src, ss, run, [](auto a, auto b) { return b > a || b != b ? b : a; });
    default:
      return update(y, ys, src, ss, run, [](auto a, auto b) { return b < a || b != b ? b : a; });
  }
}

// The parameters restricted to this call's part of the split dimension.
struct Part {
  Params p;
  int64_t src = 0, y = 0;
  int64_t idx[abi::kIndexTensors] = {};

  explicit Part(const KernelCall& call) : p(*static_cast<const Params*>(call.params)) {
    const Split split = split_of(p);
    if (split.dim < 0) return;
    const int d = split.dim;
    const int64_t begin = call.begin * split.grain;
    p.shape[d] = std::min(p.shape[d], call.end * split.grain) - begin;
    src = begin * p.src_strides[d];
    y = begin * p.y_strides[d];
    for (int k = 0; k < p.n; ++k) idx[k] = begin * p.idx_strides[k * abi::kRank + d];
  }
};

void run(const KernelCall& call) {
  if (call.begin >= call.end) return;
  const Part part(call);
  const Params& p = part.p;
  const IndexSpace space = index_space(p, p.shape, p.src_strides, p.y_strides);
  const int64_t size = element_size(p.dtype);
  const auto* src = static_cast<const std::byte*>(call.operands[0]) + part.src * size;
  auto* y = static_cast<std::byte*>(call.operands[p.n + 1]) + part.y * size;
  const int mode = p.mode;
  const int64_t run = space.run, ss = space.run_dense, ys = space.run_indexed;
  // Found once: the walk over the items is then the same code for all dtypes.
  const auto update_run = with_storage(p.dtype, [](auto type) { return &combine<decltype(type)>; });
  with_index_type(p.idx_dtype, [&](auto zero) {
    using Index = decltype(zero);
    const void* idx[abi::kIndexTensors];
    for (int k = 0; k < p.n; ++k) {
      idx[k] = static_cast<const Index*>(call.operands[k + 1]) + part.idx[k];
    }
    for_each_item<Index>(space, 0, space.items(), idx, call.failure, [=](int64_t from, int64_t to) {
      update_run(mode, y + to * size, ys, src + from * size, ss, run);
    });
  });
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  if (elements(p) == 0) return 0;
  const Split split = split_of(p);
  return split.dim < 0 ? 1 : (p.shape[split.dim] + split.grain - 1) / split.grain;
}

int64_t scratch(const void*) {
  return 0;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_indices(c, p)) return why;
  if (p.mode < 0 || p.mode >= kModes) return "there is no such mode";
  const int64_t size = element_size(p.dtype);
  if (size == 0) return "there is no such dtype";
  const Region src = Region().dims(p.shape, p.src_strides, p.rank);
  if (const char* why = src.reads(c, 0, size)) return why;
  return indexed_region(p, p.y_strides).reads(c, static_cast<size_t>(p.n) + 1, size);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({saturated(p.shape, p.rank), p.n + 1});
}

}  // namespace

extern const KernelEntry scatter_kernel;
const KernelEntry scatter_kernel = {"scatter", Params::kSchema, sizeof(Params), run,     check,
                                    tasks,     scratch,         nullptr,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
