// Rows of many requests over a cache in pages: where a row of a request lies, proved to be inside
// the cache from the positions, requests and tables that the command reads when it runs. Each of
// these is read once for an address: what was proved of it holds when it is used. Where nothing in
// the method writes them, they are read before the kernel waits for the launches before it.
#pragma once
#include "kernels/cuda/common/mma_types.h"

namespace npusim {

// A row: token `position` of `request`, or of none.
struct PagedPlace {
  int64_t request, position;
  bool exists;  // it is a row, and its numbers are those of one

  // Keys [begin, end) are what it sees.
  int64_t end() const { return exists ? position + 1 : 0; }
  int64_t begin(int64_t window) const {
    return window > 0 ? larger<int64_t>(0, end() - window) : 0;
  }
};

// Positions and requests of rows, and tables: operands [kFirst, kFirst + 3). Reports to `failure`,
// which is not to be done before the wait.
template <int kFirst>
struct PagedTables {
  static constexpr bool kUnwritten = (unwritten_operands >> kFirst & 7) == 7;
  static constexpr int64_t kLastPosition = params.table_length * params.page_tokens - 1;

  const int64_t *positions, *requests, *tables;
  Failure* failure;

  PagedTables(void* const* operands, int failure_at)
      : positions(static_cast<const int64_t*>(operands[kFirst])),
        requests(static_cast<const int64_t*>(operands[kFirst + 1])),
        tables(static_cast<const int64_t*>(operands[kFirst + 2])),
        failure(static_cast<Failure*>(operands[failure_at])) {}

  PagedPlace place(int64_t row) const {
    const int64_t request = requests[row], position = positions[row];
    const bool exists =
        request >= 0 && request < params.requests && position >= 0 && position <= kLastPosition;
    return {request, position, exists};
  }

  // Says what is outside of the numbers of a row that is neither none nor exists.
  void report_place(const PagedPlace& at) const {
    if (at.request < 0 || at.request >= params.requests) {
      report(failure, kOutOfRange, at.request, params.requests - 1);
    } else {
      report(failure, kOutOfRange, at.position, kLastPosition);
    }
  }

  // The page of rows [index * page_tokens, …) of a request, or -1 where there is none.
  int64_t known_page(int64_t request, int64_t index) const {
    const int64_t page = named(request, index);
    return page >= 0 && page < params.pages ? page : -1;
  }
  // The same; reports what is there instead.
  int64_t page(int64_t request, int64_t index) const { return checked(named(request, index)); }

  // What the table has, not to be used before it is checked.
  int64_t named(int64_t request, int64_t index) const {
    return tables[request * params.table_length + index];
  }
  int64_t checked(int64_t page) const {
    if (page >= 0 && page < params.pages) return page;
    report(failure, kOutOfRange, page, params.pages - 1);
    return -1;
  }
};

}  // namespace npusim
