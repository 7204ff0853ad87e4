#include "cpp/serve/paged_cache.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "cpp/serve/require.h"
#include "cpp/serve/scheduler.h"

namespace npusim::serve {

PagedCache::PagedCache(int64_t pages, int64_t page_tokens, bool shares)
    : page_tokens_(page_tokens),
      shares_(shares),
      pool_(pages),
      index_(pages, page_tokens),
      taken_(static_cast<size_t>(pages), 0) {}

Page PagedCache::take() {
  const Page page = pool_.take();
  index_.forget(page);
  taken_[static_cast<size_t>(page)] = ++takings_;
  return page;
}

std::span<const int64_t> PagedCache::page_of(std::span<const int64_t> tokens, size_t page) const {
  const auto length = static_cast<size_t>(page_tokens_);
  return tokens.subspan(page * length, length);
}

uint64_t PagedCache::hash_of(PageTable& table, std::span<const int64_t> tokens,
                             std::string_view salt, size_t page) const {
  for (size_t i = table.hashes.size(); i <= page; ++i) {
    const uint64_t before = i == 0 ? prefix_root(salt) : table.hashes[i - 1];
    table.hashes.push_back(prefix_hash(before, page_of(tokens, i)));
  }
  return table.hashes[page];
}

PrefixMatch PagedCache::match(PageTable& table, std::span<const int64_t> tokens,
                              std::string_view salt) const {
  PrefixMatch found;
  if (!shares_) return found;
  const size_t most = (tokens.size() - 1) / static_cast<size_t>(page_tokens_);
  for (size_t page = 0; page < most; ++page) {
    const uint64_t hash = hash_of(table, tokens, salt, page);
    const PrefixNode node = index_.find(found.node, salt, hash, page_of(tokens, page));
    if (node.is_root()) break;
    found.node = node;
    found.pages.push_back(node.page);
    if (pool_.holders(node.page) > 0) ++found.shared;
  }
  return found;
}

void PagedCache::begin(PageTable& table, const PrefixMatch& match) {
  require(table.pages.empty(), "a table without pages");
  for (const Page page : match.pages) pool_.hold(page);
  table.pages = match.pages;
  table.entered = static_cast<int64_t>(match.pages.size());
  table.node = match.node;
  table.enters = true;
  table.number = ++tables_;
}

void PagedCache::grow(PageTable& table, int64_t tokens) {
  const auto wanted = static_cast<size_t>(pages_of(tokens, page_tokens_));
  while (table.pages.size() < wanted) table.pages.push_back(take());
}

Page PagedCache::grow_by_copy(PageTable& table, const PageMark& from) {
  const Page page = take();
  table.pages.push_back(page);
  if (page != from.page) return page;
  taken_[static_cast<size_t>(page)] = from.taken;
  as_they_were_.push_back(page);
  return page;
}

void PagedCache::end_copies() {
  for (const Page page : as_they_were_) taken_[static_cast<size_t>(page)] = ++takings_;
  as_they_were_.clear();
}

void PagedCache::enter(PageTable& table, std::span<const int64_t> tokens, std::string_view salt,
                       int64_t computed) {
  while (shares_ && table.enters && (table.entered + 1) * page_tokens_ <= computed) {
    const auto page = static_cast<size_t>(table.entered++);
    const uint64_t hash = hash_of(table, tokens, salt, page);
    table.node = index_.add(table.node, salt, hash, page_of(tokens, page), table.pages[page]);
    table.enters = !table.node.is_root();
  }
}

void PagedCache::release(PageTable& table) {
  // The last one first, so that of what is kept the ends are taken before what they follow.
  for (auto page = table.pages.rbegin(); page != table.pages.rend(); ++page) {
    pool_.release(*page, index_.has(*page));
  }
  table.pages.clear();
  table.entered = 0;
  table.node = {};
}

void PagedCache::reset() {
  require(pool_.free() == pool_.size(), "pages that nobody holds");
  index_.clear();
  pool_ = PagePool(pool_.size());
  for (uint64_t& taken : taken_) taken = ++takings_;
}

int64_t PagedCache::freed_by(std::span<const PageTable* const> tables) const {
  std::unordered_map<Page, int32_t> holders;
  int64_t freed = 0;
  for (const PageTable* table : tables) {
    for (const Page page : table->pages) {
      if (++holders[page] == pool_.holders(page)) ++freed;
    }
  }
  return freed;
}

void PagedCache::check(std::span<const PageTable* const> tables) const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  std::unordered_map<Page, int32_t> holders;
  for (const PageTable* table : tables) {
    for (size_t i = 0; i < table->pages.size(); ++i) {
      const bool is_last_holder = ++holders[table->pages[i]] == 1;
      expect(is_last_holder || index_.has(table->pages[i]), "a shared page without an entry");
    }
  }
  for (Page page = 0; page < pool_.size(); ++page) {
    const auto found = holders.find(page);
    expect(pool_.holders(page) == (found == holders.end() ? 0 : found->second),
           "a page has other holders than tables");
  }
  expect(pool_.free() + static_cast<int64_t>(holders.size()) == pool_.size(),
         "free and held pages are not all there are");
  expect(index_.size() <= pool_.kept() + static_cast<int64_t>(holders.size()),
         "a blank page has an entry");
}

}  // namespace npusim::serve
