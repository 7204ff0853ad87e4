// Pages, the index of what they hold, and the tables of requests.
#include "cpp/serve/page_pool.h"

#include <limits>
#include <vector>

#include "cpp/serve/paged_cache.h"
#include "cpp/serve/prefix_index.h"
#include "tests/cpp/check.h"

namespace npusim::tests {
namespace {

using namespace npusim::serve;
using Tokens = std::vector<int64_t>;

void takes_blank_pages_before_kept_ones() {
  PagePool pool(4);
  const std::vector<Page> taken = {pool.take(), pool.take(), pool.take()};
  check(taken == std::vector<Page>{0, 1, 2}, "pages in order");
  pool.release(1, true);
  pool.release(0, true);
  pool.release(2, false);
  check(pool.free() == 4 && pool.kept() == 2, "all are free, two are kept");
  check(pool.take() == 2, "the blank one that was released last");
  check(pool.take() == 3, "then the other one");
  check(pool.take() == 1 && pool.take() == 0, "then the kept ones, the oldest first");
  check(pool.free() == 0 && pool.kept() == 0, "none is left");
}

void holds_kept_pages_again() {
  PagePool pool(3);
  for (int i = 0; i < 3; ++i) pool.take();
  for (const Page page : {0, 1, 2}) pool.release(page, true);
  pool.hold(1);  // from the middle of the list
  pool.hold(1);
  check(pool.holders(1) == 2 && pool.free() == 2, "two holders of one page");
  pool.release(1, true);
  check(pool.free() == 2, "one holder is left");
  pool.release(1, true);
  check(pool.take() == 0 && pool.take() == 2 && pool.take() == 1, "it is the newest now");
}

void refuses_no_pages_and_too_many() {
  check_refused(ErrorCode::kLimit, "A paged cache of 0 pages", [] { PagePool pool(0); });
  check_refused(ErrorCode::kLimit, "of -1 pages", [] { PagePool pool(-1); });
  check_refused(ErrorCode::kLimit, "of 2147483648 pages", [] { PagePool pool(1LL << 31); });
}

// Hashes are given, so that all collide.
void compares_tokens_and_not_hashes() {
  PrefixIndex index(8, 2);
  const PrefixNode ab = index.add({}, "", 7, Tokens{1, 2}, 0);
  const PrefixNode cd = index.add({}, "", 7, Tokens{3, 4}, 1);
  const PrefixNode salted = index.add({}, "salt", 7, Tokens{1, 2}, 2);
  const PrefixNode behind = index.add(ab, "", 7, Tokens{3, 4}, 3);
  check(ab.page == 0 && cd.page == 1 && salted.page == 2 && behind.page == 3, "four entries");
  check(index.find({}, "", 7, Tokens{1, 2}) == ab, "by tokens");
  check(index.find({}, "salt", 7, Tokens{1, 2}) == salted, "by salt");
  check(index.find({}, "tlas", 7, Tokens{1, 2}).is_root(), "no such salt");
  check(index.find(ab, "", 7, Tokens{3, 4}) == behind, "by what came before");
  check(index.find(cd, "", 7, Tokens{3, 4}).is_root(), "nothing came after that");
  check(index.find({}, "", 8, Tokens{1, 2}).is_root(), "another hash");
  check(index.add({}, "", 7, Tokens{1, 2}, 4) == ab && !index.has(4),
        "known tokens stay where they are");
}

void finds_nothing_behind_what_was_forgotten() {
  PrefixIndex index(8, 1);
  const PrefixNode first = index.add({}, "", 1, Tokens{5}, 0);
  const PrefixNode second = index.add(first, "", 2, Tokens{6}, 1);
  index.forget(0);
  index.forget(0);  // once more does nothing
  check(index.find({}, "", 1, Tokens{5}).is_root() && index.size() == 1, "the first is gone");
  check(index.add(first, "", 3, Tokens{7}, 2).is_root() && !index.has(2),
        "nothing is added behind it");
  const PrefixNode again = index.add({}, "", 1, Tokens{9}, 0);  // the page has other tokens now
  check(index.find(again, "", 2, Tokens{6}).is_root(),
        "what lay behind the page before is not found");
  check(index.find(first, "", 2, Tokens{6}) == second, "by the entry that was");
  index.clear();
  check(index.size() == 0 && !index.has(1), "all is forgotten");
}

void leaves_a_token_to_compute() {
  PagedCache cache(8, 2, true);
  const Tokens tokens = {1, 2, 3, 4};
  PageTable one, two;
  cache.grow(one, 4);
  cache.enter(one, tokens, "", 4);
  PrefixMatch match = cache.match(two, tokens, "");
  check(match.pages == std::vector<Page>{0} && match.shared == 1,
        "the last page is not matched whole");
  const Tokens longer = {1, 2, 3, 4, 5};
  PageTable three;
  check(cache.match(three, longer, "").pages.size() == 2, "with a token behind it, it is");
  cache.begin(two, match);
  cache.grow(two, 4);
  cache.enter(two, tokens, "", 4);  // its second page has what another one has already
  const std::vector<const PageTable*> tables = {&one, &two};
  cache.check(tables);
  check(cache.freed_by(tables) == 3 && cache.freed_by(std::vector<const PageTable*>{&one}) == 1,
        "shared pages are free when all let go");
  cache.release(one);
  cache.release(two);
  check(cache.pool().free() == 8 && cache.pool().kept() == 2, "one copy of each is kept");
  cache.reset();
  check(cache.pool().kept() == 0 && cache.match(three, longer, "").pages.empty(),
        "nothing is kept");
}

void shares_nothing_where_it_is_told_so() {
  PagedCache cache(4, 1, false);
  PageTable one, two;
  cache.grow(one, 2);
  cache.enter(one, Tokens{1, 2}, "", 2);
  check(cache.match(two, Tokens{1, 2}, "").pages.empty(), "no match");
  cache.release(one);
  check(cache.pool().kept() == 0, "nothing is kept");
}

void gives_ends_away_before_beginnings() {
  PagedCache cache(3, 1, true);
  const Tokens tokens = {1, 2, 3, 4};
  PageTable one, two, three;
  cache.grow(one, 3);
  cache.enter(one, tokens, "", 3);
  cache.release(one);
  cache.grow(two, 1);  // takes one of the kept
  check(cache.match(three, tokens, "").pages.size() == 2, "the beginning is still there");
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  takes_blank_pages_before_kept_ones();
  holds_kept_pages_again();
  refuses_no_pages_and_too_many();
  compares_tokens_and_not_hashes();
  finds_nothing_behind_what_was_forgotten();
  leaves_a_token_to_compute();
  shares_nothing_where_it_is_told_so();
  gives_ends_away_before_beginnings();
  return exit_code();
}
