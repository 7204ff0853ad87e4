// The pages of a paged cache: who holds them, and whose content is worth keeping.
//
// A page is blank, held by at least one request, or kept: held by nobody, with content that a later
// request may want. Blank pages are taken first, then the kept one that was released longest ago.
#pragma once

#include <cstdint>
#include <vector>

namespace npusim::serve {

using Page = int32_t;
constexpr Page kNoPage = -1;

// Not thread-safe. Calls with pages outside of [0, size()), or in another state than they say, are
// defects of the caller, and end the program.
class PagePool {
 public:
  // Throws Error(kLimit) for fewer than one page, or more than int32 counts.
  explicit PagePool(int64_t pages);

  int64_t size() const noexcept { return static_cast<int64_t>(pages_.size()); }
  // What take() can give: blank and kept pages.
  int64_t free() const noexcept { return static_cast<int64_t>(blank_.size()) + kept_; }
  int64_t kept() const noexcept { return kept_; }
  int32_t holders(Page page) const;

  // Gives a page that nobody held to one holder; free() > 0. What a kept page had is lost: whoever
  // knew of it is to forget it.
  Page take();
  // One holder more, of a page that is held or kept.
  void hold(Page page);
  // One holder fewer. Of the last one, says whether the page is kept; else it is blank.
  void release(Page page, bool keep);

 private:
  struct Entry {
    int32_t holders = 0;
    bool is_kept = false;
    Page older = kNoPage, newer = kNoPage;  // among the kept
  };
  Entry& entry(Page page);
  void unlink(Page page);

  std::vector<Entry> pages_;
  std::vector<Page> blank_;  // the next one to take is the last
  Page oldest_ = kNoPage, newest_ = kNoPage;
  int64_t kept_ = 0;
};

}  // namespace npusim::serve
