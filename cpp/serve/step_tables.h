// The tables of a step's requests as the device has them: of a step that continues few pages are
// new, so only rows that changed go there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/serve/page_pool.h"

namespace npusim::serve {

class StepTables {
 public:
  StepTables() = default;
  StepTables(int64_t requests, int64_t length);

  // Begins a step; then the pages of its requests 0, 1, 2, … are put.
  void begin() { changed_.clear(); }
  void put(int64_t request, std::span<const Page> pages);

  // Calls send(first request, its table and those of the requests behind) for runs of tables that
  // changed. What it throws goes on, and all of them are sent again when they are put next.
  template <typename Send>
  void send(const Send& send) {
    for (size_t i = 0; i < changed_.size();) {
      size_t last = i;
      while (last + 1 < changed_.size() &&
             changed_[last + 1].request - changed_[last].request <= kMostApart) {
        ++last;
      }
      const int64_t first = changed_[i].request, end = changed_[last].request + 1;
      send(first,
           std::span<const int64_t>(tables_).subspan(static_cast<size_t>(first * length_),
                                                     static_cast<size_t>((end - first) * length_)));
      i = last + 1;
    }
    for (const Changed& of : changed_) counts_[static_cast<size_t>(of.request)] = of.pages;
  }

 private:
  static constexpr int64_t kMostApart = 8;  // tables between two that go together
  static constexpr int64_t kUnknown = -1;
  struct Changed {
    int64_t request, pages;
  };

  int64_t length_ = 0;
  std::vector<int64_t> tables_;
  std::vector<int64_t> counts_;  // pages of each that the device has; or kUnknown
  std::vector<Changed> changed_;
};

}  // namespace npusim::serve
