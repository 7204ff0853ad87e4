// Which pages each request has: pool and prefix index together, the host's side of a paged cache.
//
// What is written lies in pages of one request alone: requests share full pages only, and a match
// leaves at least one token that is to be computed. A page that is not full yet can be copied as
// long as nobody has taken it anew: a mark says so, and holds nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cpp/serve/page_pool.h"
#include "cpp/serve/prefix_index.h"

namespace npusim::serve {

// The pages of one request, in the order of its tokens; none as long as it waits.
struct PageTable {
  std::vector<Page> pages;
  std::vector<uint64_t> hashes;  // prefix_hash of its full pages, as far as they were asked for
  int64_t entered = 0;           // of its pages, those that the index has seen
  PrefixNode node;               // the entry of the last of these
  bool enters = true;            // false: what came before was forgotten, so nothing can follow
  uint64_t number = 0;           // another one each time that it begins; then pages only come
};

// The beginning of a request that is in pages already.
struct PrefixMatch {
  std::vector<Page> pages;
  PrefixNode node;
  int64_t shared = 0;  // of the pages, those that others hold
};

// A page since it was taken.
struct PageMark {
  Page page = kNoPage;
  uint64_t taken = 0;
};

// Not thread-safe.
class PagedCache {
 public:
  // `shares`: whether anything is entered, and found again. Throws as PagePool.
  PagedCache(int64_t pages, int64_t page_tokens, bool shares);

  // Finds the longest beginning of the tokens, less the last one, that lies in full pages.
  PrefixMatch match(PageTable& table, std::span<const int64_t> tokens, std::string_view salt) const;
  // Makes a match the first pages of an empty table.
  void begin(PageTable& table, const PrefixMatch& match);
  // Takes pages until the table has room for so many tokens; they have to be free.
  void grow(PageTable& table, int64_t tokens);
  // What a page is now, and whether it still is: its first rows hold what they did.
  PageMark mark(Page page) const { return {page, taken_[static_cast<size_t>(page)]}; }
  bool holds(const PageMark& mark) const { return this->mark(mark.page).taken == mark.taken; }
  // Takes a page for a table, which has to be free, to hold what a marked page holds; returns it.
  // It may be that one, which its marks are then of until end_copies.
  Page grow_by_copy(PageTable& table, const PageMark& from);
  // From here on pages that were taken may be written.
  void end_copies();
  // Enters the full pages of the first `computed` tokens, whose content is there.
  void enter(PageTable& table, std::span<const int64_t> tokens, std::string_view salt,
             int64_t computed);
  // Lets go of all pages.
  void release(PageTable& table);
  // Forgets all content, which nobody may hold any more.
  void reset();

  // How many pages become free when all of these are released.
  int64_t freed_by(std::span<const PageTable* const> tables) const;

  bool shares() const noexcept { return shares_; }
  const PagePool& pool() const noexcept { return pool_; }
  int64_t page_tokens() const noexcept { return page_tokens_; }
  // Throws std::logic_error unless these tables are all there is, and everything fits together.
  void check(std::span<const PageTable* const> tables) const;

 private:
  uint64_t hash_of(PageTable& table, std::span<const int64_t> tokens, std::string_view salt,
                   size_t page) const;
  Page take();
  std::span<const int64_t> page_of(std::span<const int64_t> tokens, size_t page) const;

  int64_t page_tokens_;
  bool shares_;
  PagePool pool_;
  PrefixIndex index_;
  std::vector<uint64_t> taken_;  // by page: the number of its latest taking
  uint64_t takings_ = 0, tables_ = 0;
  std::vector<Page> as_they_were_;  // pages that were taken, and still hold what they did
};

}  // namespace npusim::serve
