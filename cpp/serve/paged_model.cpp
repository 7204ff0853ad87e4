#include "cpp/serve/paged_model.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "cpp/runtime/convert.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/sized_program.h"
#include "cpp/runtime/utf8.h"
#include "cpp/serve/require.h"
#include "cpp/serve/scheduler.h"

namespace npusim::serve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kStep = "step";
constexpr std::array<std::string_view, 5> kNames = {"tokens", "positions", "requests", "tables",
                                                    "rows"};
constexpr std::array<std::string_view, 3> kOutputs = {"logits", "best", "highest"};
constexpr int64_t kAlignment = 256;        // of inputs that lie one behind the other
constexpr int64_t kBytesBetween = 16'384;  // that are sent along for less than another copy takes

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Writes integers as a dtype of 64 or 32 bits; returns how many bytes that took.
int64_t write_integers(std::span<const int64_t> values, DType dtype, std::span<std::byte> to) {
  const auto bytes = static_cast<int64_t>(values.size()) * dtype_size(dtype);
  require(bytes <= static_cast<int64_t>(to.size()), "room for the inputs of a step");
  if (dtype == DType::kInt64) {
    std::memcpy(to.data(), values.data(), static_cast<size_t>(bytes));
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const auto narrow = static_cast<int32_t>(values[i]);
    std::memcpy(to.data() + i * sizeof narrow, &narrow, sizeof narrow);
  }
  return bytes;
}

void expect(bool holds, const std::string& what) {
  if (holds) return;
  throw Error(ErrorCode::kFormat,
              "The program cannot serve many requests: " + what + ". Compile the model again.");
}

size_t step_of(const Program& program) {
  for (size_t i = 0; i < program.methods.size(); ++i) {
    if (program.methods[i].name == kStep) return i;
  }
  throw Error(ErrorCode::kInput,
              "The program has no method 'step', which takes rows of many requests; serve it by "
              "sessions instead, one request at a time");
}

}  // namespace

PagedModel::PagedModel(std::shared_ptr<const Program> program, std::shared_ptr<Device> device,
                       std::shared_ptr<const Weights> weights)
    : program_(std::move(program)),
      device_(admit(std::move(device), *program_)),
      weights_(std::move(weights)),
      executor_(program_, device_),
      method_(step_of(*program_)) {
  const Metadata metadata = read_metadata(*program_);
  expect(metadata.language_model && metadata.language_model->serve,
         "its metadata has no 'serve' of a language model");
  check_facts(*metadata.language_model);
  find_pools(metadata);
  find_inputs();
  find_outputs();
  find_sizes();
  state_ = std::make_shared<State>(program_, device_);
  if (weights_ != nullptr) weights_->check_now();
}

void PagedModel::check_facts(const LanguageModelFacts& facts) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const ServeFacts& serve = *facts.serve;
  const auto take = [&](int64_t& to, const char* name, int64_t value) {
    expect(value >= 1 && value <= kMost, std::string(name) + " is " + std::to_string(value));
    to = value;
  };
  take(facts_.max_context, "max_context", facts.max_context);
  take(facts_.vocab_size, "vocab_size", facts.vocab_size);
  take(facts_.page_tokens, "page_tokens", serve.page_tokens);
  take(facts_.max_step_tokens, "max_step_tokens", serve.max_step_tokens);
  take(facts_.max_requests, "max_requests", serve.max_requests);
  facts_.eos_tokens = facts.eos_token_ids;
  facts_.is_asynchronous = !device_->synchronous();
  // Elsewhere each copy waits for the device: as long as computing the rows, about.
  facts_.copies_pages = device_->queues_copies();
}

// All pools have as many pages.
void PagedModel::find_pools(const Metadata& metadata) {
  const std::vector<std::string>& pools = metadata.language_model->serve->pools;
  expect(!pools.empty(), "it has no pools of pages");
  for (const std::string& name : pools) {
    const auto is_it = [&](const StateTensor& state) { return state.name == name; };
    const auto pool = std::find_if(metadata.states.begin(), metadata.states.end(), is_it);
    expect(pool != metadata.states.end(), "it has no state " + quote_name(name));
    const int64_t pages = pool->shape.empty() ? 0 : pool->shape.front();
    expect(facts_.pages == 0 || facts_.pages == pages, "its pools differ in their pages");
    facts_.pages = pages;
    int64_t bytes = dtype_size(pool->dtype);
    for (const int64_t size : std::span(pool->shape).subspan(1)) bytes *= size;
    expect(bytes <= program_->buffers[pool->buffer].bytes / std::max<int64_t>(pages, 1),
           "a pool has no room for its pages");
    pools_.push_back({pool->buffer, bytes});
  }
}

void PagedModel::find_inputs() {
  const Method& method = program_->methods[method_];
  expect(method.inputs.size() == kInputs, "method step has other inputs");
  inputs_.resize(kInputs);
  order_.resize(kInputs);
  int64_t bytes = 0;
  for (size_t i = 0; i < kInputs; ++i) {
    const size_t at = spec_index(method.inputs, kNames[i]);
    const TensorSpec& spec = method.inputs[at];
    expect(spec.dtype == DType::kInt64 || spec.dtype == DType::kInt32,
           "method step, " + std::string(kNames[i]) + " are no integers");
    order_[at] = i;
    inputs_[i].dtype = spec.dtype;
    bytes += aligned(program_->buffers[spec.buffer].bytes);
  }
  given_ = device_->allocate(bytes);
  const TensorSpec& tables = method.inputs[spec_index(method.inputs, kNames[kTables])];
  expect(tables.shape.size() == 2, "method step, tables are no rows of pages");
  table_length_ = tables.shape[1];
  expect(table_length_ >= pages_of(facts_.max_context, facts_.page_tokens),
         "method step, tables have no room for the pages of a context");
  expect(sizes_of({facts_.max_step_tokens, facts_.max_requests}).size() == 2,
         "method step does not take any number of rows and requests");
  entries_ = StepEntries(facts_.max_requests);
  tables_ = StepTables(facts_.max_requests, table_length_,
                       kBytesBetween / dtype_size(inputs_[kTables].dtype));
  staged_.resize(static_cast<size_t>(bytes));
  bound_inputs_.resize(kInputs);
}

void PagedModel::find_outputs() {
  const Method& method = program_->methods[method_];
  const std::vector<TensorSpec>& specs = method.outputs;
  expect(specs.size() == 1 || specs.size() == kOutputs.size(), "method step has other outputs");
  outputs_.resize(specs.size());
  bound_outputs_.resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    // One output needs no name.
    outputs_[specs.size() == 1 ? 0 : spec_index(specs, kOutputs.at(i))] = i;
  }
  const auto spec_of = [&](size_t output) -> const TensorSpec& {
    const auto at = std::find(outputs_.begin(), outputs_.end(), output);
    return specs[static_cast<size_t>(at - outputs_.begin())];
  };
  const TensorSpec& spec = spec_of(0);
  const std::vector<int64_t> shape = {facts_.max_requests, facts_.vocab_size};
  expect(spec.shape == shape && spec.alloc_shape == shape && is_float(spec.dtype),
         "method step gives no scores of all tokens for each request");
  logits_dtype_ = spec.dtype;
  logits_ = device_->allocate(program_->buffers[spec.buffer].bytes);
  if (specs.size() == 1) return;
  const std::vector<int64_t> each = {facts_.max_requests};
  const TensorSpec &best = spec_of(1), &highest = spec_of(2);
  expect(best.alloc_shape == each && best.dtype == DType::kInt64 && highest.alloc_shape == each &&
             highest.dtype == logits_dtype_,
         "method step gives no best token for each request");
  const int64_t bytes = facts_.max_requests * (8 + dtype_size(logits_dtype_)) + kAlignment;
  found_ = device_->allocate_watched(bytes);  // read as soon as the step has run
  if (found_ == nullptr) found_ = device_->allocate(bytes);
  facts_.finds_best = true;
}

// What there is code for is made ready here, that no request waits for it.
void PagedModel::find_sizes() {
  const Method& method = program_->methods[method_];
  const size_t told_by = order_.at(method.sizes.told[0].input);
  const size_t requests = told_by == kTables || told_by == kRows ? 0 : 1;  // of the two symbols
  for (const std::vector<int64_t>& values : prepared_values(*program_, method)) {
    const Sizes sizes = {values[1 - requests], values[requests]};
    prepared_.push_back({sizes, sizes_of(sizes)});
  }
  std::ranges::sort(prepared_, [](const Form& a, const Form& b) {
    return std::pair(a.sizes.tokens, a.sizes.requests) <
           std::pair(b.sizes.tokens, b.sizes.requests);
  });
  for (const Form& form : prepared_) executor_.prepare(method_, form.symbols);
}

// The values of the method's symbols for so many rows and requests.
std::vector<int64_t> PagedModel::sizes_of(const Sizes& sizes) const {
  const std::array<Shape, kInputs> shapes = {Shape{1, sizes.tokens},
                                             {sizes.tokens},
                                             {sizes.tokens},
                                             {sizes.requests, table_length_},
                                             {sizes.requests}};
  std::vector<Shape> given;
  for (const size_t input : order_) given.push_back(shapes.at(input));
  return symbols_of(program_->methods[method_], given);
}

// Of the step's rows, or the least that there is code for and that has room for them.
void PagedModel::choose_sizes(const StepPlan& plan) {
  Sizes used{};
  for (const StepRows& rows : plan.rows) {
    used.tokens += static_cast<int64_t>(rows.tokens.size());
    used.requests += rows.entries();
  }
  require(used.tokens <= facts_.max_step_tokens && used.requests <= facts_.max_requests,
          "no more rows than a step takes");
  const auto has_room = [&](const Form& form) {
    return form.sizes.tokens >= used.tokens && form.sizes.requests >= used.requests;
  };
  const auto found = std::ranges::find_if(prepared_, has_room);
  if (found != prepared_.end())
    form_ = *found;
  else
    form_ = {used, sizes_of(used)};
}

// Rows of no request and entries without rows, whose tables nothing reads, fill the step up.
void PagedModel::choose_entries(const StepPlan& plan) {
  slots_.clear();
  for (const StepRows& rows : plan.rows) slots_.push_back(rows.slot);
  entries_.begin(slots_, form_.sizes.requests, entry_of_);
  const auto tokens = static_cast<size_t>(form_.sizes.tokens);
  inputs_[kTokens].values.assign(tokens, 0);
  inputs_[kPositions].values.assign(tokens, 0);
  inputs_[kRequests].values.assign(tokens, -1);
  inputs_[kRows].values.assign(static_cast<size_t>(form_.sizes.requests), -1);
  filled_ = 0;
}

void PagedModel::put_rows(const StepRows& rows, int64_t entry) {
  if (!rows.wants_all) {
    put_entry(rows, entry, 0, rows.tokens.size(), rows.wants_scores || rows.wants_best);
    if (rows.wants_scores) wanted_.push_back(entry);
    if (rows.wants_best) wanted_best_.push_back(entry);
    return;
  }
  for (size_t i = 0; i < rows.tokens.size(); ++i) {
    const int64_t own = i == 0 ? entry : entries_.take();
    put_entry(rows, own, i, 1, true);
    wanted_.push_back(own);
  }
}

// Some of a request's rows, as an entry of the step.
void PagedModel::put_entry(const StepRows& rows, int64_t entry, size_t first, size_t count,
                           bool is_wanted) {
  for (size_t i = first; i < first + count; ++i, ++filled_) {
    inputs_[kTokens].values[filled_] = rows.tokens[i];
    inputs_[kPositions].values[filled_] = rows.first_position + static_cast<int64_t>(i);
    inputs_[kRequests].values[filled_] = entry;
  }
  tables_.put(entry, rows.table, rows.pages);
  if (!is_wanted) return;
  inputs_[kRows].values[static_cast<size_t>(entry)] = static_cast<int64_t>(filled_) - 1;
}

void PagedModel::copy_pages(std::span<const PageCopy> copies) {
  for (const auto& [from, to] : copies) {
    require(from >= 0 && from < facts_.pages && to >= 0 && to < facts_.pages, "pages of the pool");
    for (const auto& [buffer, bytes] : pools_) {
      const MemoryRange pool = state_->range(buffer);
      device_->queue_copy(pool.part(to * bytes, bytes), pool.part(from * bytes, bytes));
    }
  }
}

// Puts integers among what goes to the device, to that byte of its inputs.
void PagedModel::stage(std::span<const int64_t> values, DType dtype, int64_t to) {
  const std::span<std::byte> room = std::span(staged_).subspan(staged_bytes_);
  const std::span<std::byte> bytes =
      room.first(static_cast<size_t>(write_integers(values, dtype, room)));
  uploads_.push_back({given_->range().part(to, static_cast<int64_t>(bytes.size())), bytes});
  staged_bytes_ += bytes.size();
}

// The tables where they changed, and behind them all other inputs, in the method's order.
void PagedModel::stage_all() {
  uploads_.clear();
  staged_bytes_ = 0;
  const DType dtype = inputs_[kTables].dtype;
  tables_.send([&](int64_t first, std::span<const int64_t> cells) {
    stage(cells, dtype, first * dtype_size(dtype));
  });
  int64_t at = aligned(facts_.max_requests * table_bytes());
  const int64_t behind = at;
  const size_t first = staged_bytes_;
  for (size_t i = 0; i < kInputs; ++i) {
    const size_t input = order_[i];
    if (input == kTables) {
      bound_inputs_[i] = given_->range().part(0, form_.sizes.requests * table_bytes());
      continue;
    }
    const std::span<std::byte> room =
        std::span(staged_).subspan(first + static_cast<size_t>(at - behind));
    const int64_t bytes = write_integers(inputs_[input].values, inputs_[input].dtype, room);
    bound_inputs_[i] = given_->range().part(at, bytes);
    at += aligned(bytes);
  }
  const auto bytes = static_cast<size_t>(at - behind);
  uploads_.push_back(
      {given_->range().part(behind, at - behind), std::span(staged_).subspan(first, bytes)});
}

void PagedModel::place_outputs() {
  const int64_t requests = form_.sizes.requests, each = dtype_size(logits_dtype_);
  std::array<Binding, kOutputs.size()> places;
  places[0] = logits_->range().part(0, requests * facts_.vocab_size * each);
  if (found_ != nullptr) {
    places[1] = found_->range().part(0, requests * 8);
    places[2] = found_->range().part(aligned(requests * 8), requests * each);
  }
  for (size_t i = 0; i < outputs_.size(); ++i) bound_outputs_[i] = places.at(outputs_[i]);
}

void PagedModel::start(const StepPlan& plan) {
  const auto begins = Clock::now();
  fill(plan);
  const auto filled = Clock::now();
  send();
  const auto sent = Clock::now();
  executor_.enqueue(method_, bound_inputs_, bound_outputs_, weights_.get(), state_.get(), 0,
                    form_.symbols);
  const auto seconds = [](Clock::duration took) {
    return std::chrono::duration<double>(took).count();
  };
  start_times_.fill += seconds(filled - begins);
  start_times_.send += seconds(sent - filled);
  start_times_.launch += seconds(Clock::now() - sent);
  start_times_.copies += static_cast<int64_t>(uploads_.size());
}

void PagedModel::send() {
  try {
    device_->upload_all(uploads_);
  } catch (...) {
    tables_.forget();
    throw;
  }
}

void PagedModel::fill(const StepPlan& plan) {
  wanted_.clear();
  wanted_best_.clear();
  tables_.begin();
  choose_sizes(plan);
  choose_entries(plan);
  for (size_t i = 0; i < plan.rows.size(); ++i) put_rows(plan.rows[i], entry_of_[i]);
  copy_pages(plan.copies);
  stage_all();
  place_outputs();
}

std::span<const float> PagedModel::finish() {
  executor_.settle(method_);
  scores_.clear();
  best_.clear();
  for (const int64_t entry : wanted_) {
    const std::span<const float> row = scores_of(entry);
    scores_.insert(scores_.end(), row.begin(), row.end());
  }
  if (!wanted_best_.empty()) find_best();
  return scores_;
}

void PagedModel::find_best() {
  const auto count = static_cast<size_t>(form_.sizes.requests);
  const auto behind = static_cast<size_t>(aligned(form_.sizes.requests * 8));
  const size_t bytes = count * static_cast<size_t>(dtype_size(logits_dtype_));
  const std::byte* found = found_->host();
  if (found == nullptr) {
    raw_.resize(behind + bytes);
    device_->download(raw_, *found_, 0);
    found = raw_.data();
  }
  highest_.resize(count);
  convert_floats({found + behind, bytes}, logits_dtype_,
                 std::as_writable_bytes(std::span(highest_)), DType::kFloat32);
  found_tokens_.resize(count);
  std::memcpy(found_tokens_.data(), found, count * sizeof(int64_t));
  for (const int64_t entry : wanted_best_) {
    const auto at = static_cast<size_t>(entry);
    best_.push_back(best_of(entry, found_tokens_[at], highest_[at]));
  }
}

// The scores of a request of the step.
std::span<const float> PagedModel::scores_of(int64_t request) {
  const int64_t bytes = facts_.vocab_size * dtype_size(logits_dtype_);
  const auto row_bytes = static_cast<size_t>(bytes);
  std::vector<std::byte> copied;
  const std::byte* seen = logits_->host();
  if (seen == nullptr) {
    copied.resize(row_bytes);
    device_->download(copied, *logits_, request * bytes);
    seen = copied.data();
  } else {
    seen += request * bytes;
  }
  row_.resize(static_cast<size_t>(facts_.vocab_size));
  convert_floats({seen, row_bytes}, logits_dtype_, std::as_writable_bytes(std::span(row_)),
                 DType::kFloat32);
  return row_;
}

// A NaN may stand in the place of the highest: then the scores say.
int64_t PagedModel::best_of(int64_t request, int64_t token, float highest) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  if (highest > kNone) return token;
  if (highest == kNone) return -1;
  float most = kNone;
  int64_t best = -1;
  const std::span<const float> scores = scores_of(request);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] > most) {
      most = scores[i];
      best = static_cast<int64_t>(i);
    }
  }
  return best;
}

}  // namespace npusim::serve
