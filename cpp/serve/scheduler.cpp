#include "cpp/serve/scheduler.h"

#include <algorithm>

namespace npusim::serve {
namespace {

// A schedule in the making.
class Draft {
 public:
  Draft(std::span<const RunningLoad> running, int64_t free_pages, const SchedulerView& view,
        const StepLimits& limits)
      : running_(running),
        view_(view),
        limits_(limits),
        kept_(running.size()),
        at_first_(free_pages),
        free_(free_pages) {}

  Schedule make() {
    share_generating();
    budget_ = std::min(limits_.step_tokens - static_cast<int64_t>(made_.shares.size()),
                       limits_.prompt_tokens);
    share_prompts();
    if (made_.preempted == 0) admit();
    return std::move(made_);
  }

 private:
  static bool generates(const RunningLoad& load) { return !load.is_held && load.pending() == 1; }
  int64_t pages(int64_t tokens) const { return pages_of(tokens, limits_.page_tokens); }

  void share_generating() {
    for (size_t i = 0; i < kept_; ++i) {
      const RunningLoad& load = running_[i];
      if (!generates(load)) continue;
      const int64_t wanted = pages(load.known) - load.pages;
      while (free_ < wanted && i < kept_) preempt_last();
      if (i >= kept_) return;  // it was the last itself
      taken_ += wanted;
      free_ -= wanted;
      made_.shares.push_back({i, 1});
      ++entries_;
    }
  }

  void preempt_last() {
    free_ = at_first_ + view_.freed_from(--kept_) - taken_;
    ++made_.preempted;
  }

  // Entries that a request may take and leave one to each that is kept and has none yet.
  int64_t spare_entries() const {
    const auto shared = static_cast<int64_t>(made_.shares.size());
    const int64_t behind = std::max<int64_t>(0, static_cast<int64_t>(kept_) - shared - 1);
    return std::max<int64_t>(1, limits_.entries - entries_ - behind);
  }

  // How many of the pending tokens run now.
  int64_t chunk(const RunningLoad& load) const {
    const int64_t scored = std::min(limits_.scored_tokens, spare_entries());
    const int64_t most = std::min(budget_, load.scores_all ? scored : load.pending());
    if (most >= load.pending()) return load.pending();
    if (limits_.prompt_tokens < limits_.page_tokens) return most;
    const int64_t end = (load.scheduled + most) / limits_.page_tokens * limits_.page_tokens;
    return end > load.scheduled ? end - load.scheduled : most;
  }

  void share(size_t request, const RunningLoad& load) {
    const int64_t tokens = chunk(load);
    made_.shares.push_back({request, tokens});
    budget_ -= tokens;
    entries_ += load.scores_all ? tokens : 1;
  }

  void share_prompts() {
    for (size_t i = 0; i < kept_ && budget_ > 0; ++i) {
      const RunningLoad& load = running_[i];
      if (load.is_held || generates(load)) continue;
      share(i, load);
    }
  }

  // Pages that a request takes within so many tokens more than it knows.
  int64_t growth(int64_t known, int64_t most, int64_t held, int64_t horizon) const {
    return std::max<int64_t>(0, pages(std::min(most, known + horizon)) - held);
  }

  // Steps until a request has made a token, at most, and a page of tokens after it.
  int64_t horizon(int64_t prompts) const {
    return 2 * pages_of(prompts, limits_.least_prompt_tokens) + 2 + limits_.page_tokens;
  }

  void admit() {
    std::vector<RunningLoad> all(running_.begin(), running_.end());
    int64_t prompts = 0;
    for (const RunningLoad& load : all) prompts += load.pending() > 1 ? cost(load) : 0;
    while (budget_ > 0 && static_cast<int64_t>(all.size()) < limits_.requests &&
           entries_ < limits_.entries) {
      const std::optional<WaitingLoad> next = view_.waiting(made_.admitted);
      if (!next) return;
      const RunningLoad load{
          .known = next->known,
          .scheduled = next->cached_pages * limits_.page_tokens + next->copied_tokens,
          .most = next->most,
          .pages = pages(next->known),
          .scores_all = next->scores_all,
          .is_held = next->is_held};
      const int64_t left = free_ - (load.pages - next->shared_pages);
      all.push_back(load);
      prompts += cost(load);
      if (left < reserve(all, horizon(prompts))) return;
      free_ = left;
      if (!load.is_held) share(all.size() - 1, load);
      ++made_.admitted;
    }
  }

  // Tokens of a step that a request's pending ones take up at most.
  int64_t cost(const RunningLoad& load) const {
    return load.scores_all ? load.pending() * limits_.least_prompt_tokens : load.pending();
  }

  int64_t reserve(std::span<const RunningLoad> all, int64_t steps) const {
    int64_t sum = 0;
    for (const RunningLoad& load : all) sum += growth(load.known, load.most, load.pages, steps);
    return sum;
  }

  std::span<const RunningLoad> running_;
  const SchedulerView& view_;
  const StepLimits& limits_;
  Schedule made_;
  size_t kept_;             // of the running, those that are not put back
  const int64_t at_first_;  // pages that were free
  int64_t free_, taken_ = 0, budget_ = 0;
  int64_t entries_ = 0;  // that shares take
};

}  // namespace

Schedule schedule(std::span<const RunningLoad> running, int64_t free_pages,
                  const SchedulerView& view, const StepLimits& limits) {
  return Draft(running, free_pages, view, limits).make();
}

}  // namespace npusim::serve
