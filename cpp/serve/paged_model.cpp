#include "cpp/serve/paged_model.h"

#include <algorithm>
#include <array>
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

constexpr std::string_view kStep = "step";
constexpr std::array<std::string_view, 5> kNames = {"tokens", "positions", "requests", "tables",
                                                    "rows"};
constexpr std::array<std::string_view, 3> kOutputs = {"logits", "best", "highest"};
constexpr int64_t kAlignment = 256;  // of inputs that lie one behind the other

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Writes integers as a dtype of 64 or 32 bits; returns how many bytes that took.
int64_t write_integers(std::span<const int64_t> values, DType dtype, std::byte* to) {
  const auto count = static_cast<int64_t>(values.size());
  const int64_t bytes = count * dtype_size(dtype);
  if (dtype == DType::kInt64) {
    std::memcpy(to, values.data(), static_cast<size_t>(bytes));
  } else {
    const std::vector<int32_t> narrow(values.begin(), values.end());
    std::memcpy(to, narrow.data(), static_cast<size_t>(bytes));
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
  tables_ = StepTables(facts_.max_requests, table_length_);
}

void PagedModel::find_outputs() {
  const Method& method = program_->methods[method_];
  const std::vector<TensorSpec>& specs = method.outputs;
  expect(specs.size() == 1 || specs.size() == kOutputs.size(), "method step has other outputs");
  outputs_.resize(specs.size());
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
  found_ = device_->allocate(facts_.max_requests * (8 + dtype_size(logits_dtype_)) + kAlignment);
  facts_.finds_best = true;
}

// What there is code for is made ready here, that no request waits for it.
void PagedModel::find_sizes() {
  const Method& method = program_->methods[method_];
  const size_t told_by = order_.at(method.sizes.told[0].input);
  const size_t requests = told_by == kTables || told_by == kRows ? 0 : 1;  // of the two symbols
  for (const std::vector<int64_t>& values : prepared_values(*program_, method)) {
    prepared_.push_back({values[1 - requests], values[requests]});
  }
  std::ranges::sort(prepared_, [](const Sizes& a, const Sizes& b) {
    return std::pair(a.tokens, a.requests) < std::pair(b.tokens, b.requests);
  });
  for (const Sizes& sizes : prepared_) executor_.prepare(method_, sizes_of(sizes));
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

PagedModel::Sizes PagedModel::room_for(const Sizes& sizes) const {
  for (const Sizes& prepared : prepared_) {
    if (prepared.tokens >= sizes.tokens && prepared.requests >= sizes.requests) return prepared;
  }
  return sizes;
}

void PagedModel::put_rows(const StepRows& rows) {
  const auto request = static_cast<int64_t>(inputs_[kRows].values.size());
  if (!rows.wants_all) {
    put_entry(rows, 0, rows.tokens.size(), rows.wants_scores || rows.wants_best);
    if (rows.wants_scores) wanted_.push_back(request);
    if (rows.wants_best) wanted_best_.push_back(request);
    return;
  }
  for (size_t i = 0; i < rows.tokens.size(); ++i) {
    put_entry(rows, i, 1, true);
    wanted_.push_back(request + static_cast<int64_t>(i));
  }
}

// Some of a request's rows, as the method's next request.
void PagedModel::put_entry(const StepRows& rows, size_t first, size_t count, bool is_wanted) {
  const auto request = static_cast<int64_t>(inputs_[kRows].values.size());
  std::vector<int64_t>& tokens = inputs_[kTokens].values;
  const std::span<const int64_t> given = rows.tokens.subspan(first, count);
  tokens.insert(tokens.end(), given.begin(), given.end());
  for (size_t i = first; i < first + count; ++i) {
    inputs_[kPositions].values.push_back(rows.first_position + static_cast<int64_t>(i));
    inputs_[kRequests].values.push_back(request);
  }
  tables_.put(request, rows.pages);
  inputs_[kRows].values.push_back(is_wanted ? static_cast<int64_t>(tokens.size()) - 1 : -1);
}

// Rows of no request, requests without rows, whose tables nothing reads.
void PagedModel::fill_up(const Sizes& sizes) {
  const auto fill = [&](size_t input, int64_t count, int64_t value) {
    inputs_[input].values.resize(static_cast<size_t>(count), value);
  };
  fill(kTokens, sizes.tokens, 0);
  fill(kPositions, sizes.tokens, 0);
  fill(kRequests, sizes.tokens, -1);
  fill(kRows, sizes.requests, -1);
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

void PagedModel::upload_tables() {
  tables_.send([&](int64_t first, std::span<const int64_t> tables) {
    staged_.resize(tables.size() * sizeof(int64_t));
    const auto bytes = write_integers(tables, inputs_[kTables].dtype, staged_.data());
    device_->upload(*given_, first * table_bytes(),
                    std::span(staged_).first(static_cast<size_t>(bytes)));
  });
}

// All inputs but the tables in one copy; where each lies, in the method's order.
std::vector<Binding> PagedModel::upload() {
  upload_tables();
  std::vector<Binding> bindings(kInputs);
  const int64_t behind = aligned(facts_.max_requests * table_bytes());
  int64_t at = 0;
  staged_.resize(static_cast<size_t>(given_->bytes() - behind));
  for (size_t i = 0; i < kInputs; ++i) {
    const size_t input = order_[i];
    if (input == kTables) {
      bindings[i] = given_->range().part(0, sizes_.requests * table_bytes());
      continue;
    }
    const int64_t bytes =
        write_integers(inputs_[input].values, inputs_[input].dtype, staged_.data() + at);
    bindings[i] = given_->range().part(behind + at, bytes);
    at += aligned(bytes);
  }
  device_->upload(*given_, behind, std::span(staged_).first(static_cast<size_t>(at)));
  return bindings;
}

void PagedModel::start(const StepPlan& plan) {
  wanted_.clear();
  wanted_best_.clear();
  for (Input& input : inputs_) input.values.clear();
  tables_.begin();
  for (const StepRows& rows : plan.rows) put_rows(rows);
  const Sizes used = {static_cast<int64_t>(inputs_[kTokens].values.size()),
                      static_cast<int64_t>(inputs_[kRows].values.size())};
  require(used.tokens <= facts_.max_step_tokens && used.requests <= facts_.max_requests,
          "no more rows than a step takes");
  sizes_ = room_for(used);
  fill_up(sizes_);
  copy_pages(plan.copies);
  const std::vector<Binding> inputs = upload();
  const int64_t vocabulary = facts_.vocab_size * dtype_size(logits_dtype_);
  std::array<Binding, kOutputs.size()> places;
  places[0] = logits_->range().part(0, sizes_.requests * vocabulary);
  if (found_ != nullptr) {
    places[1] = found_->range().part(0, sizes_.requests * 8);
    places[2] = found_->range().part(aligned(sizes_.requests * 8),
                                     sizes_.requests * dtype_size(logits_dtype_));
  }
  std::vector<Binding> outputs;
  for (const size_t output : outputs_) outputs.push_back(places.at(output));
  executor_.enqueue(method_, inputs, outputs, weights_.get(), state_.get(), 0, sizes_of(sizes_));
}

std::span<const float> PagedModel::finish() {
  executor_.settle(method_);
  scores_.clear();
  best_.clear();
  for (const int64_t request : wanted_) {
    const std::span<const float> row = scores_of(request);
    scores_.insert(scores_.end(), row.begin(), row.end());
  }
  if (wanted_best_.empty()) return scores_;
  const auto count = static_cast<size_t>(sizes_.requests);
  const auto behind = static_cast<size_t>(aligned(sizes_.requests * 8));
  const size_t bytes = count * static_cast<size_t>(dtype_size(logits_dtype_));
  raw_.resize(behind + bytes);
  device_->download(raw_, *found_, 0);
  highest_.resize(count);
  convert_floats(std::span(raw_).subspan(behind), logits_dtype_,
                 std::as_writable_bytes(std::span(highest_)), DType::kFloat32);
  std::vector<int64_t> tokens(count);
  std::memcpy(tokens.data(), raw_.data(), count * sizeof(int64_t));
  for (const int64_t request : wanted_best_) {
    const auto at = static_cast<size_t>(request);
    best_.push_back(best_of(request, tokens[at], highest_[at]));
  }
  return scores_;
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
