// index: y[o] = x[o, wrapped index tensors]: embedding, index_select, gather, advanced indexing.
// The elements that share their indices move as one run (a row of an embedding is one memcpy).
#include <cstring>

#include "kernels/cpu/index_space.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

constexpr int64_t kElementsPerTask = 16384;

using Params = abi::IndexParams;

int64_t items_per_task(const IndexSpace& space) {
  return std::max<int64_t>(1, kElementsPerTask / space.run);
}

IndexSpace space_of(const Params& p) {
  return index_space(p, p.shape, p.y_strides, p.x_strides);
}

// Items [begin, end) of one element each by one index tensor, as `aten.gather` has them: a row of
// the innermost dimension at a time, with what is the same for all of its elements in registers.
template <typename T>
void gather_elements(const IndexSpace& space, int64_t begin, int64_t end, const KernelCall& call) {
  const auto* index = static_cast<const int64_t*>(call.operands[1]);
  const T* x = static_cast<const T*>(call.operands[0]);
  T* y = static_cast<T*>(call.operands[2]);
  const IndexSpace::Dimension& inner = space.dims[space.rank - 1];
  const int64_t size = space.k_size[0], least = space.k_least[0], step = space.k_stride[0];
  const int64_t ys = inner.strides[IndexSpace::kDense], xs = inner.strides[IndexSpace::kIndexed];
  const int64_t is = inner.strides[IndexSpace::kFirstIndex];
  IndexCursor cursor;
  cursor.seek(space, begin);
  for (int64_t item = begin; item < end;) {
    const int64_t count = std::min(end - item, inner.size - cursor.at[space.rank - 1]);
    const int64_t* at = index + cursor.offset[IndexSpace::kFirstIndex];
    const T* from = x + cursor.offset[IndexSpace::kIndexed];
    T* to = y + cursor.offset[IndexSpace::kDense];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t given = at[i * is], value = given < 0 ? given + size : given;
      if (given < least || given >= size) {
        return call.failure->report("index out of range", given, size);
      }
      to[i * ys] = from[i * xs + value * step];
    }
    item += count;
    cursor.advance(space, count);
  }
}

template <typename T, typename Index>
void gather(const IndexSpace& space, const KernelCall& call) {
  const int64_t grain = items_per_task(space);
  const int64_t end = std::min(space.items(), call.end * grain);
  const T* x = static_cast<const T*>(call.operands[0]);
  T* y = static_cast<T*>(call.operands[space.n + 1]);
  const auto each = [&](auto&& move) {
    for_each_item<Index>(space, call.begin * grain, end, call.operands + 1, call.failure, move);
  };
  if constexpr (std::is_same_v<Index, int64_t>) {
    if (space.n == 1 && space.run == 1 && space.rank > 0) {
      return gather_elements<T>(space, call.begin * grain, end, call);
    }
  }
  const int64_t run = space.run, ys = space.run_dense, xs = space.run_indexed;
  if (run == 1) {
    each([=](int64_t to, int64_t from) { y[to] = x[from]; });
  } else if (ys == 1 && xs == 1) {
    each([=](int64_t to, int64_t from) {
      std::memcpy(y + to, x + from, static_cast<size_t>(run) * sizeof(T));
    });
  } else {
    each([=](int64_t to, int64_t from) {
      for (int64_t i = 0; i < run; ++i) y[to + i * ys] = x[from + i * xs];
    });
  }
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const IndexSpace space = space_of(p);
  with_index_type(p.idx_dtype, [&](auto index) {
    using Index = decltype(index);
    switch (p.element_size) {
      case 1:
        return gather<uint8_t, Index>(space, call);
      case 2:
        return gather<uint16_t, Index>(space, call);
      case 4:
        return gather<uint32_t, Index>(space, call);
      default:
        return gather<uint64_t, Index>(space, call);
    }
  });
}

int64_t tasks(const void* params, int64_t) {
  const IndexSpace space = space_of(*static_cast<const Params*>(params));
  const int64_t grain = items_per_task(space);
  return (space.items() + grain - 1) / grain;
}

int64_t scratch(const void*) {
  return 0;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_indices(c, p)) return why;
  const int64_t size = p.element_size;
  if (size != 1 && size != 2 && size != 4 && size != 8)
    return "the element size is not 1, 2, 4 or 8";
  if (const char* why = indexed_region(p, p.x_strides).reads(c, 0, size)) return why;
  const auto y = static_cast<size_t>(p.n) + 1;
  return Region().dims(p.shape, p.y_strides, p.rank).writes(c, y, size);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({saturated(p.shape, p.rank), p.n + 1});
}

}  // namespace

extern const KernelEntry index_kernel;
const KernelEntry index_kernel = {"index", Params::kSchema, sizeof(Params), run,     check,
                                  tasks,   scratch,         nullptr,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
