// Fuzzes what steps are given. The bytes are calls, one behind the other: requests with any tokens
// and options, ends, masks, steps; and rows with any tokens, positions and pages, put to a program
// without an engine. What is refused changes nothing, and everything else ends: the batch's
// invariants hold after each call, a plain request has the answer that it has alone, and after
// wrong rows right ones have the right scores.
//
// The program gives the sum of a request's tokens, modulo 48 (tests/serve/paged_model.py).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "cpp/runtime/error.h"
#include "cpp/serve/batch.h"
#include "cpp/serve/paged_model.h"

namespace npusim {
namespace {

using namespace npusim::serve;
using Tokens = std::vector<int64_t>;

constexpr int64_t kVocabulary = 48;
constexpr int kMostCalls = 200, kMostSteps = 20'000;

void require(bool condition, std::source_location at = std::source_location::current()) {
  if (condition) return;
  std::fprintf(stderr, "step_fuzzer: line %u does not hold\n", static_cast<unsigned>(at.line()));
  std::abort();
}

// Numbers out of the bytes; zeros behind their end.
class Given {
 public:
  Given(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool is_empty() const { return left_ == 0; }
  uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  int64_t below(int64_t count) { return byte() % count; }
  bool one_in(int count) { return byte() % count == 1; }

  // Most often a number of [least, most], else one at which something turns over.
  int64_t integer(int64_t least, int64_t most) {
    constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
    constexpr int64_t kOdd[] = {-1,         -2,         kFar, -kFar - 1, kFar / 2, int64_t{1} << 32,
                                2147483647, 2147483648, 48,   1 << 20,   24,       40};
    if (one_in(16)) return kOdd[below(std::size(kOdd))];
    return least + below(most - least + 1);
  }
  double real(double usual) {
    constexpr double kOdd[] = {-1,
                               0,
                               1e-300,
                               1e300,
                               std::numeric_limits<double>::infinity(),
                               1.0001,
                               -0.0,
                               2,
                               std::numeric_limits<double>::quiet_NaN()};
    return one_in(16) ? kOdd[below(std::size(kOdd))] : usual;
  }
  Tokens tokens(int64_t most) {
    Tokens made(static_cast<size_t>(below(most + 1)));
    for (int64_t& token : made) token = integer(0, kVocabulary - 1);
    return made;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

std::shared_ptr<const Program> program() {
  static const auto made =
      Program::open(std::string(NPUSIM_SOURCE_DIR) + "/tests/cpp/programs/paged_sum.npubin");
  return made;
}

std::shared_ptr<PagedModel> model() {
  static const auto device = open_device("cpu", {{"threads", int64_t{1}}});
  return std::make_shared<PagedModel>(program(), device, nullptr);
}

RequestOptions options_of(Given& given, RequestId latest) {
  RequestOptions options;
  options.max_tokens = given.integer(0, 12);
  options.min_tokens = given.one_in(4) ? given.integer(0, 5) : 0;
  options.ignore_eos = given.one_in(2);
  if (given.one_in(4)) options.stop_tokens = given.tokens(3);
  options.presence_penalty = given.real(0);
  options.frequency_penalty = given.real(0);
  if (given.one_in(4)) {
    options.logit_bias = {{given.integer(0, 47), static_cast<float>(given.real(3))}};
  }
  options.logprobs = given.one_in(4) ? given.integer(0, 20) : -1;
  options.prompt_logprobs = given.one_in(4) ? given.integer(0, 20) : -1;
  options.priority = given.integer(0, 2);
  if (given.one_in(4)) options.salt = std::string(1, static_cast<char>(given.byte()));
  options.prefix_cache = !given.one_in(4);
  options.masked = given.one_in(8);
  if (given.one_in(2)) {
    options.follows = static_cast<RequestId>(given.integer(0, static_cast<int64_t>(latest)));
  }
  options.sampling.temperature = given.real(0);
  options.sampling.top_k = given.one_in(4) ? given.integer(0, 5) : 0;
  options.sampling.top_p = given.real(1);
  options.sampling.min_p = given.real(0);
  options.sampling.repetition_penalty = given.real(1);
  options.sampling.seed = given.byte();
  return options;
}

// Whether the answer is that of sums, as far as it goes.
bool is_plain(const RequestOptions& options) {
  const SamplingOptions& sampling = options.sampling;
  return options.min_tokens == 0 && options.presence_penalty == 0 &&
         options.frequency_penalty == 0 && options.logit_bias.empty() && !options.masked &&
         sampling.temperature == 0 && sampling.repetition_penalty == 1;
}

struct Known {
  Tokens tokens;
  bool is_plain = false, is_masked = false, wants_prompt = false;
  size_t prompt = 0;
};

// Requests to a batch.
class Calls {
 public:
  explicit Calls(Given& given) : given_(given), batch_(model(), options(given)) {}

  void run() {
    for (int calls = 0; calls < kMostCalls && !given_.is_empty(); ++calls) {
      act();
      settle();
    }
    for (auto& [id, known] : known_) {
      if (known.is_masked) batch_.cancel(id);
    }
    std::erase_if(known_, [](const auto& each) { return each.second.is_masked; });
    for (int steps = 0; batch_.step(); ++steps) {
      require(steps < kMostSteps);
      settle();
    }
    require(known_.empty() && batch_.is_idle());
    const BatchStats stats = batch_.stats();
    require(stats.free_pages == stats.pages && stats.running == 0 && stats.waiting == 0);
  }

 private:
  static BatchOptions options(Given& given) {
    BatchOptions options;
    options.max_requests = given.below(5);
    options.max_step_tokens = given.below(17);
    options.prefix_cache = !given.one_in(4);
    options.patience = given.below(4);
    return options;
  }

  void act() {
    switch (given_.below(8)) {
      case 0:
      case 1:
      case 2:
        return submit();
      case 3: {
        const auto id = static_cast<RequestId>(given_.integer(0, 20));
        batch_.cancel(id);
        known_.erase(id);
        return;
      }
      case 4: {
        const auto id = static_cast<RequestId>(given_.integer(0, 20));
        return batch_.allow(id, {given_.byte() * 0x01010101U, given_.byte()});
      }
      default:
        batch_.step();
    }
  }

  void submit() {
    Tokens tokens = given_.tokens(40);
    if (given_.one_in(2) && !last_.empty()) tokens = last_;
    const RequestOptions options = options_of(given_, latest_);
    try {
      batch_.check(tokens, options);
    } catch (const Error& error) {
      require(error.code() == ErrorCode::kLimit || error.code() == ErrorCode::kInput);
      return;
    }
    last_ = tokens;
    known_[++latest_] = {.tokens = tokens,
                         .is_plain = is_plain(options),
                         .is_masked = options.masked,
                         .wants_prompt = options.prompt_logprobs >= 0,
                         .prompt = tokens.size()};
    batch_.submit(latest_, std::move(tokens), options);
  }

  void settle() {
    batch_.check_invariants();
    for (const Event& event : batch_.take_events()) take(event);
  }

  void take(const Event& event) {
    const auto found = known_.find(event.request);
    require(found != known_.end());
    Known& known = found->second;
    for (const int64_t token : event.tokens) {
      require(token >= 0 && token < kVocabulary);
      if (known.is_plain) {
        int64_t sum = 0;
        for (const int64_t before : known.tokens) sum += before;
        require(token == sum % kVocabulary);
      }
      known.tokens.push_back(token);
    }
    if (event.prompt_logprobs) {
      require(known.wants_prompt && event.prompt_logprobs->size() + 1 == known.prompt);
      known.wants_prompt = false;
    }
    require(!event.error || event.error->code() == ErrorCode::kData);  // no token is left
    if (event.is_last()) known_.erase(found);
  }

  Given& given_;
  Batch batch_;
  std::map<RequestId, Known> known_;
  RequestId latest_ = 0;
  Tokens last_;
};

// Rows as no engine would make them.
void put_wrong_rows(Given& given, PagedModel& runner) {
  const RunnerFacts facts = runner.facts();
  StepPlan plan;
  std::vector<Tokens> tokens(1 + static_cast<size_t>(given.below(3)));
  std::vector<std::vector<Page>> pages(tokens.size());
  int64_t entries = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = given.tokens(4);
    if (tokens[i].empty()) tokens[i] = {1};
    pages[i].resize(static_cast<size_t>(given.below(14)));  // a table has ten
    for (Page& page : pages[i]) page = static_cast<Page>(given.integer(0, facts.pages - 1));
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max() - 16;
    StepRows rows{.request = i,
                  .slot = static_cast<int64_t>(i),
                  .tokens = tokens[i],
                  .first_position = std::min(kMost, given.integer(0, facts.max_context)),
                  .pages = pages[i],
                  .wants_scores = false};
    const int64_t wants = given.below(4);
    rows.wants_scores = wants == 1;
    rows.wants_all = wants == 2;
    entries += rows.entries();
    if (entries > facts.max_requests) break;
    plan.rows.push_back(rows);
  }
  if (plan.rows.empty()) return;
  try {
    runner.start(plan);
    static_cast<void>(runner.finish());
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kData);
  }
}

void run_rows(Given& given) {
  const std::shared_ptr<PagedModel> runner = model();
  for (int calls = 0; calls < kMostCalls && !given.is_empty(); ++calls) {
    put_wrong_rows(given, *runner);
    const Tokens right = {given.below(48), given.below(48), 7, 1, 2};
    const std::vector<Page> pages = {static_cast<Page>(given.below(24)),
                                     static_cast<Page>((given.below(23)))};
    if (pages[0] == pages[1]) continue;
    StepPlan plan;
    plan.rows = {{.request = 9,
                  .slot = 0,
                  .tokens = right,
                  .first_position = 0,
                  .pages = pages,
                  .wants_scores = true}};
    runner->start(plan);
    const std::span<const float> scores = runner->finish();
    const int64_t sum = right[0] + right[1] + 10;
    require(scores.size() == static_cast<size_t>(kVocabulary) &&
            scores[static_cast<size_t>(sum % kVocabulary)] == 0);
  }
}

}  // namespace
}  // namespace npusim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  npusim::Given given(data, size);
  if (given.one_in(4))
    npusim::run_rows(given);
  else
    npusim::Calls(given).run();
  return 0;
}
