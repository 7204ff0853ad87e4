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
PagedDestination destination(const Tables& tables, int64_t row) {
  const PagedPlace at = tables.place(row);
  if (!at.exists) return {-1, 0};
  return {tables.known_page(at.request, at.position / params.page_tokens),
          at.position % params.page_tokens};
}

// Says what is outside, if anything is, of a row that goes nowhere.
template <typename Tables>
void report_row(const Tables& tables, int64_t row) {
  const PagedPlace at = tables.place(row);
  if (at.exists) {
    tables.page(at.request, at.position / params.page_tokens);
  } else if (at.request != -1) {
    tables.report_place(at);
  }
}

// Called by all threads of a block, about one row: page -1 where a later row goes to its place. The
// first thread reports numbers that are outside. Waits for the launches before.
template <int kThreads, typename Tables>
PagedDestination kept_destination(const Tables& tables, int64_t row) {
  if constexpr (!Tables::kUnwritten) wait_on_dependencies();
  const PagedDestination to = destination(tables, row);
  __shared__ int overtaken;
  if (threadIdx.x == 0) overtaken = 0;
  __syncthreads();
  if (to.page >= 0) {
    for (int64_t later = row + 1 + threadIdx.x; later < params.length; later += kThreads) {
      const PagedDestination other = destination(tables, later);
      if (other.page == to.page && other.row == to.row) overtaken = 1;
    }
  }
  __syncthreads();
  if constexpr (Tables::kUnwritten) wait_on_dependencies();
  if (to.page < 0 && threadIdx.x == 0) report_row(tables, row);
  return overtaken ? PagedDestination{-1, 0} : to;
}

}  // namespace npusim
