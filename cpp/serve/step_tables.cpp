#include "cpp/serve/step_tables.h"

#include <algorithm>

namespace npusim::serve {

StepTables::StepTables(int64_t requests, int64_t length)
    : length_(length),
      tables_(static_cast<size_t>(requests * length), kNoPage),
      counts_(static_cast<size_t>(requests), kUnknown) {}

void StepTables::put(int64_t request, std::span<const Page> pages) {
  // No position reaches a page behind the end of a table: which ones would is not told.
  pages = pages.first(std::min(pages.size(), static_cast<size_t>(length_)));
  const auto count = static_cast<int64_t>(pages.size());
  int64_t& known = counts_[static_cast<size_t>(request)];
  const auto table = tables_.begin() + request * length_;
  if (known == count && std::equal(pages.begin(), pages.end(), table)) return;
  std::copy(pages.begin(), pages.end(), table);
  std::fill(table + count, table + length_, kNoPage);
  known = kUnknown;
  changed_.push_back({request, count});
}

}  // namespace npusim::serve
