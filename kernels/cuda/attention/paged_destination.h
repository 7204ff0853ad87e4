// Where a row of a step is appended, and whether it is: of rows that go to the same place the last
// one is kept, as if rows were written in order.
#pragma once
#include "kernels/cuda/attention/pages.h"

namespace npusim {

// A row's page, and its row there; page -1: it goes nowhere.
struct PagedDestination {
  int64_t page, row;
};

template <typename Tables>
PagedDestination destination(const Tables& tables, int64_t row, bool reports) {
  const PagedPlace at = tables.place(row, reports);
  if (!at.exists) return {-1, 0};
  const int64_t index = at.position / params.page_tokens;
  const int64_t page = reports ? tables.page(at.request, index)
                               : tables.tables[at.request * params.table_length + index];
  if (page < 0 || page >= params.pages) return {-1, 0};
  return {page, at.position % params.page_tokens};
}

// Called by all threads of a block, about one row: page -1 where a later row goes to its place. The
// first thread reports numbers that are outside.
template <int kThreads, typename Tables>
PagedDestination kept_destination(const Tables& tables, int64_t row) {
  const PagedDestination to = destination(tables, row, threadIdx.x == 0);
  __shared__ int overtaken;
  if (threadIdx.x == 0) overtaken = 0;
  __syncthreads();
  if (to.page >= 0) {
    for (int64_t later = row + 1 + threadIdx.x; later < params.length; later += kThreads) {
      const PagedDestination other = destination(tables, later, false);
      if (other.page == to.page && other.row == to.row) overtaken = 1;
    }
  }
  __syncthreads();
  return overtaken ? PagedDestination{-1, 0} : to;
}

}  // namespace npusim
