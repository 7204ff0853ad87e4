// Rows of many requests over a cache in pages: which page and which row of it a position of a
// request is, proved to lie inside the cache from the tables that the command reads when it runs.
#pragma once

#include <algorithm>

#include "kernels/cpu/check.h"

namespace npusim::cpu::NPUSIM_ISA {

inline constexpr int64_t kMostPageTokens = 128;

// Positions and requests of the rows, and the tables, as operands [first, first + 3) hold them.
// P: the parameters of a command that has them. Each number is read once: what was proved of it
// still holds when it is used.
template <typename P>
class Pages {
 public:
  Pages(const P& p, void* const* operands, size_t first)
      : p_(p),
        positions_(static_cast<const int64_t*>(operands[first])),
        requests_(static_cast<const int64_t*>(operands[first + 1])),
        tables_(static_cast<const int64_t*>(operands[first + 2])) {}

  // Where a row lies; `request` -1: nowhere.
  struct Row {
    int64_t request, position;
  };

  // False, and reported, when the request or the position of a row is outside.
  bool read(int64_t row, Failure* failure, Row* found) const {
    const Row at{requests_[row], positions_[row]};
    *found = at;
    if (at.request == -1) return true;
    if (at.request < 0 || at.request >= p_.requests) {
      failure->report("request without a table", at.request, p_.requests - 1);
      return false;
    }
    const int64_t last = p_.table_length * p_.page_tokens - 1;
    if (at.position >= 0 && at.position <= last) return true;
    failure->report("position outside the pages of a request", at.position, last);
    return false;
  }

  // The page of keys [index * page_tokens, …) of a request; -1, and reported, when there is none.
  int64_t page(int64_t request, int64_t index, Failure* failure) const {
    const int64_t page = tables_[request * p_.table_length + index];
    if (page >= 0 && page < p_.pages) return page;
    failure->report("page outside the cache", page, p_.pages - 1);
    return -1;
  }

 private:
  const P& p_;
  const int64_t *positions_, *requests_, *tables_;
};

// Checks the numbers of pages, and the operands [first, first + 3).
template <typename P>
const char* check_pages(const KernelCheck& c, const P& p, size_t first) {
  if (!is_float(p.dtype)) return "the dtype is not a float of 32 or 16 bits";
  if (p.page_tokens < 1 || p.page_tokens > kMostPageTokens) return "a page has not 1 to 128 rows";
  const int64_t keys[] = {p.table_length, p.page_tokens};
  if (p.pages < 0 || product(keys, 2) < 0) return "a size is negative or too large";
  const Region rows = Region().dim(p.length, 1);
  const Region tables = Region().dim(p.requests, p.table_length).dim(p.table_length, 1);
  if (const char* why = rows.reads(c, first, sizeof(int64_t))) return why;
  if (const char* why = rows.reads(c, first + 1, sizeof(int64_t))) return why;
  return tables.reads(c, first + 2, sizeof(int64_t));
}

// The elements of a cache in pages.
template <typename P>
Region cache_region(const P& p, int64_t heads, int64_t columns, const int64_t* strides) {
  return Region()
      .dim(p.pages, strides[0])
      .dim(heads, strides[1])
      .dim(p.page_tokens, strides[2])
      .dim(columns, 1);
}

}  // namespace npusim::cpu::NPUSIM_ISA
