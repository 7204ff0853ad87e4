// The tables of a step's requests as the device has them: of a step that continues few pages are
// new, so only what changed goes there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cpp/serve/page_pool.h"

namespace npusim::serve {

class StepTables {
 public:
  StepTables() = default;
  // `apart`: how many cells between two that changed go along, because another copy takes longer.
  StepTables(int64_t entries, int64_t length, int64_t apart);

  // Begins a step; then the tables of its entries are put, in any order, each once. Tables with the
  // same number, unless it is 0, begin with the same pages.
  void begin() { changed_.clear(); }
  void put(int64_t entry, uint64_t number, std::span<const Page> pages);

  // Calls send(first cell, pages from there on) for runs of cells that changed, ascending. What it
  // throws goes on, and all of them are sent again when they are put next.
  template <typename Send>
  void send(const Send& send) {
    for (const Run& run : runs()) {
      send(run.first,
           std::span<const int64_t>(cells_).subspan(static_cast<size_t>(run.first),
                                                    static_cast<size_t>(run.end - run.first)));
    }
    for (const Changed& of : changed_) known_[static_cast<size_t>(of.entry)] = of.becomes;
  }

  // What was sent has not arrived, or nobody knows: all is sent again.
  void forget() { std::ranges::fill(known_, Known{}); }

 private:
  // What the device has of an entry.
  struct Known {
    uint64_t number = 0;  // 0: nothing that is known
    int64_t pages = 0;
  };
  struct Run {
    int64_t first, end;
  };
  struct Changed {
    int64_t entry;
    Known becomes;
    Run cells;
  };
  std::span<const Run> runs();

  int64_t length_ = 0, apart_ = 0;
  std::vector<int64_t> cells_;  // of all tables; kNoPage behind each one's pages
  std::vector<Known> known_;    // by entry
  std::vector<Changed> changed_;
  std::vector<Run> runs_;
};

}  // namespace npusim::serve
