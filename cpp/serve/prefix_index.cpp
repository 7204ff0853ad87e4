#include "cpp/serve/prefix_index.h"

#include <algorithm>

#include "cpp/serve/require.h"
#include "kernels/shared/sampling.h"

namespace npusim::serve {

uint64_t prefix_root(std::string_view salt) noexcept {
  uint64_t hash = sampling::mixed(salt.size() + 1);
  for (const char c : salt) hash = sampling::mixed(hash ^ static_cast<unsigned char>(c));
  return hash;
}

uint64_t prefix_hash(uint64_t before, std::span<const int64_t> tokens) noexcept {
  uint64_t hash = before;
  for (const int64_t token : tokens) {
    hash = sampling::mixed((hash + sampling::kStep) ^ static_cast<uint64_t>(token));
  }
  return hash;
}

PrefixIndex::PrefixIndex(int64_t pages, int64_t page_tokens)
    : entries_(static_cast<size_t>(pages)), page_tokens_(static_cast<size_t>(page_tokens)) {}

bool PrefixIndex::is_live(PrefixNode node) const {
  return node.is_root() || entries_[static_cast<size_t>(node.page)].serial == node.serial;
}

PrefixNode PrefixIndex::find(PrefixNode before, std::string_view salt, uint64_t hash,
                             std::span<const int64_t> tokens) const {
  const auto [first, last] = places_.equal_range(hash);
  for (auto place = first; place != last; ++place) {
    const Entry& entry = entries_[static_cast<size_t>(place->second)];
    if (entry.before != before || !std::ranges::equal(entry.tokens, tokens)) continue;
    if (before.is_root() && entry.salt != salt) continue;
    return {place->second, entry.serial};
  }
  return {};
}

PrefixNode PrefixIndex::add(PrefixNode before, std::string_view salt, uint64_t hash,
                            std::span<const int64_t> tokens, Page page) {
  require(tokens.size() == page_tokens_, "the tokens of a whole page");
  if (!is_live(before)) return {};
  if (const PrefixNode known = find(before, salt, hash, tokens); !known.is_root()) return known;
  Entry& entry = entries_[static_cast<size_t>(page)];
  require(entry.serial == 0, "a page that has no entry");
  entry.serial = ++latest_;
  entry.hash = hash;
  entry.before = before;
  entry.salt = before.is_root() ? salt : std::string_view{};
  entry.tokens.assign(tokens.begin(), tokens.end());
  places_.emplace(hash, page);
  return {page, entry.serial};
}

void PrefixIndex::forget(Page page) {
  Entry& entry = entries_[static_cast<size_t>(page)];
  if (entry.serial == 0) return;
  const auto [first, last] = places_.equal_range(entry.hash);
  const auto is_page = [&](const auto& place) { return place.second == page; };
  const auto place = std::find_if(first, last, is_page);
  require(place != last, "an entry that can be found");
  places_.erase(place);
  entry.serial = 0;
}

void PrefixIndex::clear() {
  for (Entry& entry : entries_) entry.serial = 0;
  places_.clear();
}

}  // namespace npusim::serve
