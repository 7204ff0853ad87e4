// Rows of many requests to the pages that their tables name. A block has a row, all its heads; where
// a later row goes to the same place, that one is kept, as if rows were written in order.
#include "kernels/cuda/attention/pages.h"

namespace npusim {

constexpr int kThreads = NPUSIM_BLOCK;
constexpr int kEach = NPUSIM_EACH;  // elements that move as one
using T = BitsOf<params.dtype == 0 ? 4 : 2>::type;
enum Operands { kX, kTables, kY = 4, kFailure };

// The element of y's first head where a row goes; -1: nowhere.
inline int64_t offset_of(const PagedTables<kTables>& tables, int64_t row, bool reports) {
  const PagedPlace at = tables.place(row, reports);
  if (!at.exists) return -1;
  const int64_t index = at.position / params.page_tokens;
  const int64_t page = reports ? tables.page(at.request, index)
                               : tables.tables[at.request * params.table_length + index];
  if (page < 0 || page >= params.pages) return -1;
  return page * params.y_strides[0] + at.position % params.page_tokens * params.y_strides[2];
}

inline void append(void* const* operands) {
  const PagedTables<kTables> tables(operands, kFailure);
  const int64_t row = blockIdx.x;
  const int64_t to = offset_of(tables, row, threadIdx.x == 0);
  __shared__ int overtaken;
  if (threadIdx.x == 0) overtaken = 0;
  __syncthreads();
  if (to < 0) return;
  for (int64_t later = row + 1 + threadIdx.x; later < params.length; later += kThreads) {
    if (offset_of(tables, later, false) == to) overtaken = 1;
  }
  __syncthreads();
  if (overtaken) return;
  const T* x = static_cast<const T*>(operands[kX]) + row * params.x_strides[1];
  T* y = static_cast<T*>(operands[kY]) + to;
  constexpr int kOfHead = static_cast<int>(params.head_dim) / kEach;
  constexpr int kAll = static_cast<int>(params.heads) * kOfHead;
  for (int i = threadIdx.x; i < kAll; i += kThreads) {
    const int64_t head = i / kOfHead, at = i % kOfHead * kEach;
    const T* from = x + head * params.x_strides[0] + at;
    T* there = y + head * params.y_strides[1] + at;
    if constexpr (kEach == 1) {
      *there = *from;
    } else {
      *reinterpret_cast<uint4*>(there) = *reinterpret_cast<const uint4*>(from);
    }
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::append(operands);
}
