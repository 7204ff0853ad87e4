// A language model whose scores are a hash of all tokens that it sees through the pages: any page
// that holds something else shows in the next token. Every step is checked as the seam demands.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cpp/runtime/error.h"
#include "cpp/serve/scheduler.h"
#include "cpp/serve/step_runner.h"
#include "kernels/shared/sampling.h"
#include "tests/cpp/check.h"

namespace npusim::tests {

inline uint64_t hash_behind(uint64_t hash, int64_t token) {
  return sampling::mixed(hash + sampling::kStep + static_cast<uint64_t>(token));
}
inline void scores_of_hash(uint64_t hash, std::span<float> scores) {
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<float>(sampling::mixed(hash ^ i) >> 40) * 0x1p-20f;
  }
}

class HashRunner : public serve::StepRunner {
 public:
  explicit HashRunner(const serve::RunnerFacts& facts)
      : facts_(facts), cells_(static_cast<size_t>(facts.pages * facts.page_tokens)) {}

  serve::RunnerFacts facts() const override { return facts_; }

  void start(const serve::StepPlan& plan) override {
    check(waits_.empty(), "a step is started before the one before was finished");
    if (steps_++ == fails_at_start) fail();
    check_plan(plan);
    copies_ = plan.copies;
    for (const serve::StepRows& rows : plan.rows) {
      Rows copied{rows.first_position, rows.wants_scores, rows.wants_all, {}, {}};
      copied.tokens.assign(rows.tokens.begin(), rows.tokens.end());
      copied.pages.assign(rows.pages.begin(), rows.pages.end());
      waits_.push_back(std::move(copied));
    }
    if (!facts_.is_asynchronous) run();
  }

  std::span<const float> finish() override {
    if (at_finish) at_finish();
    if (steps_ - 1 == fails_at_finish) fail();
    if (facts_.is_asynchronous) run();
    return scores_;
  }

  std::function<void()> at_finish;                    // called when a step is waited for
  int64_t fails_at_start = -1, fails_at_finish = -1;  // the number of a step
  bool fails_always = false;
  int64_t most_tokens = 0, most_rows = 0;  // 0: what the facts say
  std::set<uint64_t> forbidden;            // requests that are never to run again
  std::vector<uint64_t> order;             // requests, as they first ran
  std::map<uint64_t, int64_t> ends;        // how far each has been computed
  std::vector<uint64_t> restarts;          // requests that began anew
  std::set<uint64_t> latest;               // requests of the latest step
  int64_t computed = 0;                    // tokens, of all steps
  int64_t copied = 0;                      // pages

  int64_t steps() const { return steps_; }

 private:
  struct Cell {
    int64_t token = -1, position = -1;
  };
  struct Rows {
    int64_t first_position;
    bool wants_scores, wants_all;
    std::vector<int64_t> tokens;
    std::vector<serve::Page> pages;
  };

  // What the step may have written is anybody's guess.
  void fail() {
    waits_.clear();
    for (Cell& cell : cells_) cell = {.token = -7, .position = -7};
    if (fails_always) fails_at_start = fails_at_finish = steps_;
    throw Error(ErrorCode::kDevice, "the device has failed");
  }

  void check_plan(const serve::StepPlan& plan) {
    std::set<int64_t> slots;
    std::map<serve::Page, int> tables, writers;
    int64_t tokens = 0, entries = 0;
    latest.clear();
    for (const serve::StepRows& rows : plan.rows) {
      const auto count = static_cast<int64_t>(rows.tokens.size());
      tokens += count;
      entries += rows.entries();
      check(rows.wants_scores + rows.wants_best + rows.wants_all <= 1, "one kind of scores");
      check(count > 0, "rows without tokens");
      check(slots.insert(rows.slot).second, "a slot stands in a step twice");
      check(rows.slot >= 0 && rows.slot < facts_.max_requests, "a slot that is there");
      check(latest.insert(rows.request).second, "a request stands in a step twice");
      check(!forbidden.contains(rows.request), "a request runs that has ended");
      const int64_t end = rows.first_position + count;
      check(static_cast<int64_t>(rows.pages.size()) == serve::pages_of(end, facts_.page_tokens),
            "pages of all positions");
      check(end <= facts_.max_context, "positions of the context");
      note_progress(rows, end);
      for (const serve::Page page : std::set(rows.pages.begin(), rows.pages.end())) ++tables[page];
      for (int64_t page = rows.first_position / facts_.page_tokens; page * facts_.page_tokens < end;
           ++page) {
        ++writers[rows.pages[static_cast<size_t>(page)]];
      }
    }
    for (const auto& [page, count] : writers) {
      check(count == 1 && tables.at(page) == 1, "a page that is written is one request's alone");
    }
    check(tokens > 0 && tokens <= (most_tokens > 0 ? most_tokens : facts_.max_step_tokens),
          "the tokens of a step");
    check(
        static_cast<int64_t>(plan.rows.size()) <= (most_rows > 0 ? most_rows : facts_.max_requests),
        "the requests of a step");
    check(entries <= facts_.max_requests, "the entries of a step");
    check(facts_.copies_pages || plan.copies.empty(), "copies where there may be");
    for (const auto& [from, to] : plan.copies) {
      check(from != to && from >= 0 && from < facts_.pages && to >= 0 && to < facts_.pages,
            "copies of pages that are there");
    }
    computed += tokens;
  }

  void note_progress(const serve::StepRows& rows, int64_t end) {
    const auto [known, is_new] = ends.emplace(rows.request, end);
    if (is_new)
      order.push_back(rows.request);
    else if (rows.first_position != known->second)
      restarts.push_back(rows.request);
    known->second = end;
  }

  void run() {
    scores_.clear();
    const auto rows_of = [&](serve::Page page) {
      return cells_.begin() + page * facts_.page_tokens;
    };
    for (const auto& [from, to] : copies_) {
      std::copy_n(rows_of(from), facts_.page_tokens, rows_of(to));
      ++copied;
    }
    for (const Rows& rows : waits_) {
      for (size_t i = 0; i < rows.tokens.size(); ++i) {
        const int64_t position = rows.first_position + static_cast<int64_t>(i);
        cell(rows, position) = {.token = rows.tokens[i], .position = position};
      }
      if (!rows.wants_scores && !rows.wants_all) continue;
      const int64_t end = rows.first_position + static_cast<int64_t>(rows.tokens.size());
      uint64_t hash = 0;
      for (int64_t position = 0; position < end; ++position) {
        const Cell& seen = cell(rows, position);
        check(seen.position == position, "a cell of another position");
        hash = hash_behind(hash, seen.token);
        const bool is_row = rows.wants_all && position >= rows.first_position;
        if (!is_row && position + 1 < end) continue;
        tell(hash);
      }
    }
    waits_.clear();
  }

  void tell(uint64_t hash) {
    const size_t before = scores_.size();
    scores_.resize(before + static_cast<size_t>(facts_.vocab_size));
    scores_of_hash(hash, std::span(scores_).subspan(before));
  }

  Cell& cell(const Rows& rows, int64_t position) {
    const int64_t page = rows.pages[static_cast<size_t>(position / facts_.page_tokens)];
    return cells_[static_cast<size_t>(page * facts_.page_tokens + position % facts_.page_tokens)];
  }

  serve::RunnerFacts facts_;
  std::vector<Cell> cells_;
  std::vector<Rows> waits_;
  std::vector<serve::PageCopy> copies_;
  std::vector<float> scores_;
  int64_t steps_ = 0;
};

// What a request that is alone makes of such scores, over tokens that lie in one piece.
struct AloneAnswer {
  std::vector<int64_t> tokens;
  serve::Ending ending = serve::Ending::kLength;
};
inline AloneAnswer answer_alone(const serve::RunnerFacts& facts, std::vector<int64_t> tokens,
                                const serve::RequestOptions& options, int64_t most,
                                std::vector<int64_t> stops, const serve::TokenMask* mask) {
  AloneAnswer made;
  std::ranges::sort(stops);
  serve::TokenChoice choice(options, stops);
  serve::ChoiceRoom room;
  std::vector<float> scores(static_cast<size_t>(facts.vocab_size));
  uint64_t hash = 0;
  for (const int64_t token : tokens) hash = hash_behind(hash, token);
  while (static_cast<int64_t>(tokens.size()) < most) {
    scores_of_hash(hash, scores);
    const int64_t token = choice.choose(scores, tokens, mask, room);
    tokens.push_back(token);
    made.tokens.push_back(token);
    hash = hash_behind(hash, token);
    if (!std::ranges::binary_search(stops, token)) continue;
    made.ending = serve::Ending::kStop;
    break;
  }
  return made;
}

}  // namespace npusim::tests
