#include "cpp/serve/batch.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

#include "cpp/runtime/error.h"
#include "cpp/serve/require.h"

namespace npusim::serve {
namespace {

// Of what a step is expected to take, and seconds at most: how long it waits for company.
constexpr double kGathering = 0.02, kMostGathering = 0.005;

double now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Error error_of(const std::exception& thrown) {
  const auto* error = dynamic_cast<const Error*>(&thrown);
  return error != nullptr ? *error : Error(ErrorCode::kDevice, thrown.what());
}

}  // namespace

// What the schedule asks. Matches are found as it looks at those that wait, and kept for admission.
class Batch::View : public SchedulerView {
 public:
  explicit View(const Batch& batch) : batch_(batch) {}

  int64_t freed_from(size_t running) const override {
    std::vector<const PageTable*> tables;
    for (size_t i = running; i < batch_.running_.size(); ++i) {
      tables.push_back(&batch_.running_[i]->table);
    }
    return batch_.cache_.freed_by(tables);
  }

  std::optional<WaitingLoad> waiting(size_t place) const override {
    if (place >= queue_.size()) look_at(2 * place + 1);
    if (place >= queue_.size()) return std::nullopt;
    ActiveRequest& request = *queue_[place];
    if (place == matches_.size()) {
      matches_.push_back(request.shares_pages() ? batch_.cache_.match(request.table, request.tokens,
                                                                      request.options.salt)
                                                : PrefixMatch{});
    }
    const PrefixMatch& match = matches_[place];
    return WaitingLoad{.known = request.known(),
                       .most = request.most_cached(),
                       .cached_pages = static_cast<int64_t>(match.pages.size()),
                       .shared_pages = match.shared,
                       .copied_tokens = batch_.copied_tokens(request, match),
                       .scores_all = request.scores_prompt(),
                       .is_held = request.options.masked && !request.mask};
  }

  ActiveRequest& request(size_t place) const { return *queue_[place]; }
  const PrefixMatch& match(size_t place) const { return matches_[place]; }

 private:
  void look_at(size_t most) const {
    queue_.clear();
    batch_.waiting_.walk([&](RequestId id) {
      queue_.push_back(batch_.requests_.at(id).get());
      return queue_.size() < most;
    });
  }

  const Batch& batch_;
  mutable std::vector<ActiveRequest*> queue_;
  mutable std::vector<PrefixMatch> matches_;
};

Batch::Batch(std::shared_ptr<StepRunner> runner, const BatchOptions& options)
    : runner_(std::move(runner)),
      facts_(checked(runner_->facts())),
      limits_(limits_of(facts_, options)),
      pace_(checked_seconds(options.step_seconds), limits_.least_prompt_tokens,
            limits_.step_tokens),
      cache_(facts_.pages, facts_.page_tokens, options.prefix_cache),
      waiting_(checked_patience(options.patience)) {
  for (int64_t slot = limits_.requests; slot > 0; --slot) slots_.push_back(slot - 1);
}

void Batch::check(std::span<const int64_t> tokens, const RequestOptions& options) const {
  check_request(facts_, tokens, options);
}

void Batch::submit(RequestId id, std::vector<int64_t> tokens, RequestOptions options) {
  auto request = std::make_unique<ActiveRequest>(id, std::move(tokens), std::move(options), facts_);
  if (!failure_.empty()) return fail(*request, Error(ErrorCode::kDevice, failure_));
  const ActiveRequest* first = followed_by(*request);
  if (first != nullptr && !first->has_prompt) {
    request->is_following = true;
    followers_[first->id].push_back(id);
    ++following_;
  } else {
    if (first != nullptr) note_beginning(*first, *request);
    waiting_.add(request->rank);
  }
  requests_.emplace(id, std::move(request));
}

// The one that it follows, if pages of that are to be taken over.
ActiveRequest* Batch::followed_by(const ActiveRequest& request) const {
  const auto found = requests_.find(request.options.follows);
  if (found == requests_.end()) return nullptr;
  const RequestOptions &own = request.options, &other = found->second->options;
  const bool may = own.prefix_cache && other.prefix_cache && own.salt == other.salt;
  return cache_.shares() && may ? found->second.get() : nullptr;
}

// Marks the page in which the beginning ends that a request has in common with the first one of its
// prompt. What runs has run when copies are made.
void Batch::note_beginning(const ActiveRequest& first, ActiveRequest& request) const {
  if (!facts_.copies_pages || !first.runs() || first.scheduled < first.prompt) return;
  const auto most = static_cast<size_t>(std::min(first.prompt, request.prompt - 1));
  const auto end = std::mismatch(first.tokens.begin(), first.tokens.begin() + most,
                                 request.tokens.begin(), request.tokens.begin() + most);
  const int64_t tokens = end.first - first.tokens.begin();
  if (tokens % facts_.page_tokens == 0) return;
  const Page page = first.table.pages[static_cast<size_t>(tokens / facts_.page_tokens)];
  request.beginning = {.page = cache_.mark(page), .tokens = tokens};
}

// How many tokens behind its match a request takes over as a copy: all up to where its beginning
// ends, if the page still holds them.
int64_t Batch::copied_tokens(const ActiveRequest& request, const PrefixMatch& match) const {
  const std::optional<SharedBeginning>& beginning = request.beginning;
  if (!beginning || !request.shares_pages() || !cache_.holds(beginning->page)) return 0;
  const int64_t behind =
      beginning->tokens - static_cast<int64_t>(match.pages.size()) * facts_.page_tokens;
  return behind > 0 && behind < facts_.page_tokens ? behind : 0;
}

// Those that waited for a request's prompt take their places in the queue.
void Batch::let_follow(RequestId id) {
  const auto found = followers_.find(id);
  if (found == followers_.end()) return;
  for (const RequestId follower : found->second) {
    const auto request = requests_.find(follower);
    if (request == requests_.end()) continue;  // it has ended
    const auto first = requests_.find(id);
    if (first != requests_.end()) note_beginning(*first->second, *request->second);
    request->second->is_following = false;
    --following_;
    waiting_.add(request->second->rank);
  }
  followers_.erase(found);
}

void Batch::cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  ++stats_.cancelled;
  leave(*found->second);
}

void Batch::allow(RequestId id, TokenMask mask) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || !found->second->options.masked) return;
  found->second->mask = std::move(mask);
}

std::vector<Event> Batch::take_events() {
  return std::exchange(events_, {});
}

bool Batch::step() {
  Step next = plan();
  const bool settled = settle();
  std::erase_if(next, [](const Row& row) { return row.request->has_ended; });
  ended_.clear();
  const bool is_started = start(std::move(next));
  if (!facts_.is_asynchronous && is_started) settle();
  return settled || is_started;
}

double Batch::gathering_seconds() const {
  if (!running_.empty() || !in_flight_.empty()) return 0;
  const View view(*this);
  int64_t tokens = 0;
  size_t requests = 0;
  while (const std::optional<WaitingLoad> next = view.waiting(requests)) {
    tokens += next->known - next->cached_pages * facts_.page_tokens - next->copied_tokens;
    ++requests;
    if (tokens >= limits_.step_tokens || requests >= static_cast<size_t>(limits_.requests)) {
      return 0;
    }
  }
  return std::min(kMostGathering, kGathering * pace_.expected(tokens));
}

Batch::Step Batch::plan() {
  const double begins = now();
  loads_.clear();
  bool generates = false;
  for (const ActiveRequest* request : running_) {
    loads_.push_back(request->load());
    generates |= request->has_prompt;
  }
  limits_.prompt_tokens = pace_.allowance(generates);
  View view(*this);
  const Schedule made = schedule(loads_, cache_.pool().free(), view, limits_);
  Step step = apply(made, view);
  stats_.plan_seconds += now() - begins;
  return step;
}

// Matched pages are held before any page is taken, so that none of them is taken. Copies are of
// pages that were not taken when they come to be made, in their order.
Batch::Step Batch::apply(const Schedule& made, View& view) {
  std::vector<ActiveRequest*> requests = running_;
  for (size_t i = 0; i < made.preempted; ++i) preempt_last();
  for (size_t i = 0; i < made.admitted; ++i) {
    requests.push_back(&view.request(i));
    cache_.begin(view.request(i).table, view.match(i));
  }
  for (size_t i = 0; i < made.admitted; ++i) admit(view.request(i), view.match(i));
  cache_.end_copies();
  Step step;
  for (const Share& share : made.shares) {
    step.push_back(row_of(*requests[share.request], share.tokens));
  }
  for (size_t i = 0; i < made.admitted; ++i) {
    cache_.grow(view.request(i).table, view.request(i).known());
  }
  return step;
}

void Batch::preempt_last() {
  ActiveRequest& request = *running_.back();
  running_.pop_back();
  cache_.release(request.table);
  slots_.push_back(std::exchange(request.slot, -1));
  request.scheduled = 0;
  waiting_.add(request.rank);
  ++stats_.preemptions;
}

void Batch::admit(ActiveRequest& request, const PrefixMatch& match) {
  // What was overtaken too often is not to be put back for those that overtook it.
  if (waiting_.admit(request.rank)) request.rank.priority = std::numeric_limits<int64_t>::min();
  request.scheduled = static_cast<int64_t>(match.pages.size()) * facts_.page_tokens;
  if (const int64_t copied = copied_tokens(request, match); copied > 0) {
    const Page from = request.beginning->page.page;
    const Page to = cache_.grow_by_copy(request.table, request.beginning->page);
    if (to != from) copies_.push_back({from, to});
    request.scheduled += copied;
  }
  if (!std::exchange(request.was_admitted, true)) {
    request.cached_tokens = request.scheduled;
    stats_.prefix_queries += request.prompt;
    stats_.prefix_hits += request.scheduled;
  }
  request.slot = slots_.back();
  slots_.pop_back();
  const auto after = [](const Rank& rank, const ActiveRequest* other) {
    return rank < other->rank;
  };
  running_.insert(std::upper_bound(running_.begin(), running_.end(), request.rank, after),
                  &request);
}

Batch::Row Batch::row_of(ActiveRequest& request, int64_t tokens) {
  Row row{.request = &request,
          .first = request.scheduled,
          .count = tokens,
          .chooses = false,
          .records = 0};
  request.scheduled += tokens;
  cache_.grow(request.table, request.scheduled);
  const int64_t unknown = request.prompt - 1 - row.first;  // tokens behind the first row's
  if (request.scores_prompt()) row.records = std::clamp<int64_t>(unknown, 0, tokens);
  row.chooses = request.scheduled == request.known() && request.most > request.prompt;
  stats_.prompt_tokens +=
      std::max<int64_t>(0, std::min(request.prompt, request.scheduled) - row.first);
  return row;
}

bool Batch::start(Step step) {
  if (step.empty()) return false;
  plan_.rows.clear();
  for (Row& row : step) {
    ActiveRequest& request = *row.request;
    request.is_choosing = row.chooses;
    row.takes_best = facts_.finds_best && row.chooses && row.records == 0 &&
                     request.options.logprobs < 0 && request.choice.takes_best();
    const std::span<const int64_t> tokens(request.tokens);
    plan_.rows.push_back(
        {.request = request.id,
         .slot = request.slot,
         .tokens = tokens.subspan(static_cast<size_t>(row.first), static_cast<size_t>(row.count)),
         .first_position = row.first,
         .pages =
             std::span(request.table.pages)
                 .first(static_cast<size_t>(pages_of(row.first + row.count, facts_.page_tokens))),
         .table = request.table.number,
         .wants_scores = row.chooses && row.records == 0 && !row.takes_best,
         .wants_best = row.takes_best,
         .wants_all = row.records > 0});
  }
  plan_.copies = std::exchange(copies_, {});
  in_flight_ = std::move(step);
  started_ = now();
  try {
    runner_->start(plan_);
  } catch (const std::exception& error) {
    fail_running(error_of(error));
    return true;
  }
  start_took_ = now() - started_;
  stats_.start_seconds += start_took_;
  stats_.starts = runner_->start_times();
  return true;
}

// Waits for the step in flight, and makes of it what it gives.
bool Batch::settle() {
  if (in_flight_.empty()) return false;
  const double waits = now();
  std::span<const float> scores;
  try {
    scores = runner_->finish();
  } catch (const std::exception& error) {
    fail_running(error_of(error));
    return true;
  }
  const double settles = now();
  stats_.runner_seconds += start_took_ + settles - waits;
  ++stats_.steps;
  failures_ = 0;
  std::span<const int64_t> best = runner_->best();
  int64_t prompt_tokens = 0;
  bool generates = false;
  events_.reserve(events_.size() + in_flight_.size());
  for (const Row& row : std::exchange(in_flight_, {})) {
    prompt_tokens += row.count > 1 ? row.count : 0;
    generates |= row.request->has_prompt;
    if (row.takes_best) {
      require(!best.empty(), "the best token of all rows that want it");
      settle_row(row, {}, best.front());
      best = best.subspan(1);
      continue;
    }
    const auto count = static_cast<size_t>(row.scores() * facts_.vocab_size);
    require(scores.size() >= count, "scores of all rows that want them");
    settle_row(row, scores.first(count), -1);
    scores = scores.subspan(count);
  }
  pace_.note(prompt_tokens, generates, settles - started_);
  stats_.choice_seconds += now() - settles;
  return true;
}

void Batch::settle_row(const Row& row, std::span<const float> scores, int64_t best) {
  ActiveRequest& request = *row.request;
  if (request.has_ended) return;
  const int64_t computed = row.first + row.count;
  // A request that was put back meanwhile has no pages; none is admitted in the same plan.
  if (request.runs() && request.shares_pages()) {
    cache_.enter(request.table, request.tokens, request.options.salt, computed);
  }
  record(row, scores);
  if (computed < request.prompt) return;
  request.has_prompt = true;
  let_follow(request.id);
  if (request.options.prompt_logprobs >= 0 && !request.has_told_prompt) {
    event_of(request).prompt_logprobs = std::move(request.prompt_logprobs);
    request.has_told_prompt = true;
  }
  if (row.chooses)
    choose(row, scores.last(row.takes_best ? 0 : static_cast<size_t>(facts_.vocab_size)), best);
  else if (request.most == request.prompt)
    finish(request, Ending::kLength);
}

// What the rows say of the prompt's next tokens, unless it was told before the request was put
// back.
void Batch::record(const Row& row, std::span<const float> scores) {
  ActiveRequest& request = *row.request;
  const auto vocabulary = static_cast<size_t>(facts_.vocab_size);
  for (int64_t i = 0; i < row.records; ++i) {
    const auto next = static_cast<size_t>(row.first + i + 1);
    if (request.prompt_logprobs.size() + 1 != next) continue;
    const std::span<const float> behind =
        scores.subspan(static_cast<size_t>(i) * vocabulary, vocabulary);
    request.prompt_logprobs.push_back(
        logprob_of(behind, request.tokens[next], request.options.prompt_logprobs));
  }
}

void Batch::choose(const Row& row, std::span<const float> scores, int64_t best) {
  ActiveRequest& request = *row.request;
  request.is_choosing = false;
  const TokenMask* mask = request.mask ? &*request.mask : nullptr;
  int64_t token = 0;
  try {
    token = row.takes_best ? request.choice.choose_best(best, facts_.vocab_size)
                           : request.choice.choose(scores, request.tokens, mask, room_);
  } catch (const Error& error) {
    return fail(request, error);
  }
  request.mask.reset();
  request.tokens.push_back(token);
  ++stats_.generated_tokens;
  Event& event = event_of(request);
  event.tokens.push_back(token);
  if (request.options.logprobs >= 0) {
    event.logprobs.push_back(logprob_of(scores, token, request.options.logprobs));
  }
  const bool is_full = static_cast<int64_t>(request.tokens.size()) >= request.most;
  if (request.choice.stops_at(token))
    finish(request, Ending::kStop);
  else if (is_full)
    finish(request, Ending::kLength);
}

void Batch::fail_running(const Error& error) {
  ++stats_.failed_steps;
  in_flight_.clear();
  while (!running_.empty()) fail(*running_.back(), error);
  for (const auto& [id, request] : requests_) request->is_choosing = false;
  copies_.clear();
  cache_.reset();  // nobody knows what the step has written
  if (++failures_ < kMostFailures) return;
  failure_ = "The engine has failed: " + std::string(error.what()) +
             ". It serves no more requests; make a new one.";
  fail_all(Error(ErrorCode::kDevice, failure_));
}

void Batch::fail_all(const Error& error) {
  std::vector<RequestId> all;
  for (const auto& [id, request] : requests_) all.push_back(id);
  std::ranges::sort(all);
  for (const RequestId id : all) fail(*requests_.at(id), error);
}

void Batch::end_all(const Error& error) {
  fail_all(error);
}

// Takes a request out of everything; it stays in memory until no step names it.
void Batch::leave(ActiveRequest& request) {
  request.has_ended = true;
  if (request.runs()) {
    std::erase(running_, &request);
    slots_.push_back(std::exchange(request.slot, -1));
    cache_.release(request.table);
  } else if (request.is_following) {
    request.is_following = false;
    --following_;
  } else {
    waiting_.remove(request.rank);
  }
  let_follow(request.id);
  const auto found = requests_.find(request.id);
  if (found == requests_.end()) return;
  ended_.push_back(std::move(found->second));
  requests_.erase(found);
}

void Batch::finish(ActiveRequest& request, Ending ending) {
  event_of(request).ending = ending;
  ++(ending == Ending::kStop ? stats_.stopped : stats_.at_length);
  leave(request);
}

void Batch::fail(ActiveRequest& request, const Error& error) {
  event_of(request).error = error;
  ++stats_.failed;
  leave(request);
}

Event& Batch::event_of(const ActiveRequest& request) {
  if (events_.empty() || events_.back().request != request.id) {
    events_.push_back({.request = request.id, .cached_tokens = request.cached_tokens});
  }
  return events_.back();
}

BatchStats Batch::stats() const {
  BatchStats stats = stats_;
  stats.running = static_cast<int64_t>(running_.size());
  stats.waiting = waiting_.size() + following_;
  stats.pages = cache_.pool().size();
  stats.free_pages = cache_.pool().free();
  stats.kept_pages = cache_.pool().kept();
  return stats;
}

void Batch::check_invariants() const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(what);
  };
  std::vector<const PageTable*> tables;
  for (const auto& [id, request] : requests_) {
    tables.push_back(&request->table);
    expect(request->runs() || request->table.pages.empty(), "a request that waits has pages");
    expect(request->scheduled <= request->known(), "more scheduled than there is");
    const int64_t room = static_cast<int64_t>(request->table.pages.size()) * facts_.page_tokens;
    expect(request->scheduled <= room, "tokens without pages");
  }
  cache_.check(tables);
  const auto by_rank = [](const ActiveRequest* a, const ActiveRequest* b) {
    return a->rank < b->rank;
  };
  expect(std::ranges::is_sorted(running_, by_rank), "the running are out of order");
  expect(running_.size() + slots_.size() == static_cast<size_t>(limits_.requests),
         "slots are lost");
  expect(requests_.size() == running_.size() + static_cast<size_t>(waiting_.size() + following_),
         "a request neither runs nor waits");
}

}  // namespace npusim::serve
