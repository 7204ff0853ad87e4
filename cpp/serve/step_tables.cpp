#include "cpp/serve/step_tables.h"

#include <algorithm>

#include "cpp/serve/require.h"

namespace npusim::serve {

StepTables::StepTables(int64_t requests, int64_t length)
    : length_(length),
      tables_(static_cast<size_t>(requests * length), kNoPage),
      counts_(static_cast<size_t>(requests), kUnknown) {}

void StepTables::put(int64_t request, std::span<const Page> pages) {
  const auto count = static_cast<int64_t>(pages.size());
  require(count <= length_, "no more pages than a table names");
  int64_t& known = counts_[static_cast<size_t>(request)];
  const auto table = tables_.begin() + request * length_;
  if (known == count && std::equal(pages.begin(), pages.end(), table)) return;
  std::copy(pages.begin(), pages.end(), table);
  std::fill(table + count, table + length_, kNoPage);
  known = kUnknown;
  changed_.push_back({request, count});
}

}  // namespace npusim::serve
