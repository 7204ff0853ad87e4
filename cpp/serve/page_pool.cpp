#include "cpp/serve/page_pool.h"

#include <limits>
#include <string>

#include "cpp/runtime/error.h"
#include "cpp/serve/require.h"

namespace npusim::serve {

PagePool::PagePool(int64_t pages) {
  if (pages < 1 || pages > std::numeric_limits<Page>::max()) {
    throw Error(ErrorCode::kLimit, "A paged cache of " + std::to_string(pages) +
                                       " pages; it must have 1 to 2147483647.");
  }
  pages_.resize(static_cast<size_t>(pages));
  blank_.reserve(pages_.size());
  for (auto page = static_cast<Page>(pages); page > 0; --page) blank_.push_back(page - 1);
}

PagePool::Entry& PagePool::entry(Page page) {
  require(page >= 0 && page < size(), "a page of the pool");
  return pages_[static_cast<size_t>(page)];
}

int32_t PagePool::holders(Page page) const {
  require(page >= 0 && page < size(), "a page of the pool");
  return pages_[static_cast<size_t>(page)].holders;
}

void PagePool::unlink(Page page) {
  Entry& left = entry(page);
  (left.older == kNoPage ? oldest_ : entry(left.older).newer) = left.newer;
  (left.newer == kNoPage ? newest_ : entry(left.newer).older) = left.older;
  left.older = left.newer = kNoPage;
  left.is_kept = false;
  --kept_;
}

Page PagePool::take() {
  require(free() > 0, "a page that is free");
  Page page = oldest_;
  if (!blank_.empty()) {
    page = blank_.back();
    blank_.pop_back();
  } else {
    unlink(page);
  }
  entry(page).holders = 1;
  return page;
}

void PagePool::hold(Page page) {
  Entry& held = entry(page);
  if (held.is_kept)
    unlink(page);
  else
    require(held.holders > 0, "a page with content");
  ++held.holders;
}

void PagePool::release(Page page, bool keep) {
  Entry& left = entry(page);
  require(left.holders > 0, "a page that is held");
  if (--left.holders > 0) return;
  if (!keep) {
    blank_.push_back(page);
    return;
  }
  left.is_kept = true;
  left.older = newest_;
  (newest_ == kNoPage ? oldest_ : entry(newest_).newer) = page;
  newest_ = page;
  ++kept_;
}

}  // namespace npusim::serve
