#include "cpp/serve/step_tables.h"

#include <algorithm>

namespace npusim::serve {

StepTables::StepTables(int64_t entries, int64_t length, int64_t apart)
    : length_(length),
      apart_(apart),
      cells_(static_cast<size_t>(entries * length), kNoPage),
      known_(static_cast<size_t>(entries)) {}

void StepTables::put(int64_t entry, uint64_t number, std::span<const Page> pages) {
  // No position reaches a page behind the end of a table: which ones would is not told.
  pages = pages.first(std::min(pages.size(), static_cast<size_t>(length_)));
  const auto count = static_cast<int64_t>(pages.size());
  Known& known = known_[static_cast<size_t>(entry)];
  const bool continues = number != 0 && known.number == number;
  if (continues && known.pages >= count) return;
  const int64_t from = continues ? known.pages : 0;
  const auto table = cells_.begin() + entry * length_;
  std::copy(pages.begin() + from, pages.end(), table + from);
  if (!continues) std::fill(table + count, table + length_, kNoPage);
  known = {};
  changed_.push_back(
      {.entry = entry,
       .becomes = {.number = number, .pages = count},
       .cells = {entry * length_ + from, entry * length_ + (continues ? count : length_)}});
}

// Those of all that changed, with what lies between near ones.
std::span<const StepTables::Run> StepTables::runs() {
  runs_.clear();
  for (const Changed& of : changed_) runs_.push_back(of.cells);
  std::ranges::sort(runs_, {}, &Run::first);
  size_t made = 0;
  for (const Run& run : runs_) {
    if (made > 0 && run.first - runs_[made - 1].end <= apart_)
      runs_[made - 1].end = run.end;
    else
      runs_[made++] = run;
  }
  return std::span(runs_).first(made);
}

}  // namespace npusim::serve
