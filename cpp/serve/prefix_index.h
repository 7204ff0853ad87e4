// Which page holds the cache of which tokens, so that requests with a common beginning share pages.
//
// Full pages form trees: a page's entry names the entry of the page before it, so a page is found
// for exactly one sequence of tokens from the beginning on, below one salt. Hashes only say where
// to look; tokens and the entry before are compared. An entry has a number that is never used
// again: what lay behind a page that was forgotten is not found any more.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cpp/serve/page_pool.h"

namespace npusim::serve {

// A place in a tree: the beginning, or behind a page as it was when it was added.
struct PrefixNode {
  Page page = kNoPage;
  uint64_t serial = 0;

  bool is_root() const noexcept { return page == kNoPage; }
  bool operator==(const PrefixNode&) const = default;
};

// The hash of a page's tokens behind others; `before` is prefix_root's, or that of the page before.
uint64_t prefix_root(std::string_view salt) noexcept;
uint64_t prefix_hash(uint64_t before, std::span<const int64_t> tokens) noexcept;

// Not thread-safe.
class PrefixIndex {
 public:
  PrefixIndex(int64_t pages, int64_t page_tokens);

  // The entry of a page's tokens behind `before`; the root when there is none. `hash` is
  // prefix_hash of all tokens up to there. Salts count at the root, and pages below inherit them.
  PrefixNode find(PrefixNode before, std::string_view salt, uint64_t hash,
                  std::span<const int64_t> tokens) const;
  // Enters a page that has no entry. Where the tokens have one already, or `before` was forgotten,
  // nothing changes. Returns the entry of these tokens; the root when there is none.
  PrefixNode add(PrefixNode before, std::string_view salt, uint64_t hash,
                 std::span<const int64_t> tokens, Page page);
  // Removes the entry of a page, if it has one.
  void forget(Page page);
  void clear();

  bool has(Page page) const { return entries_[static_cast<size_t>(page)].serial != 0; }
  int64_t size() const noexcept { return static_cast<int64_t>(places_.size()); }

 private:
  struct Entry {
    uint64_t serial = 0;  // 0: there is none
    uint64_t hash = 0;
    PrefixNode before;
    std::string salt;  // of entries at a root
    std::vector<int64_t> tokens;
  };
  bool is_live(PrefixNode node) const;

  std::vector<Entry> entries_;  // by page
  std::unordered_multimap<uint64_t, Page> places_;
  size_t page_tokens_;
  uint64_t latest_ = 0;
};

}  // namespace npusim::serve
