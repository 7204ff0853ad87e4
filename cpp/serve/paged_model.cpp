#include "cpp/serve/paged_model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "cpp/runtime/convert.h"
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
      device_(std::move(device)),
      weights_(std::move(weights)),
      executor_(program_, device_),
      method_(step_of(*program_)) {
  const Metadata metadata = read_metadata(*program_);
  expect(metadata.language_model && metadata.language_model->serve,
         "its metadata has no 'serve' of a language model");
  check_facts(*metadata.language_model);
  find_pools(metadata);
  find_inputs();
  find_logits();
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
  }
}

void PagedModel::find_inputs() {
  const Method& method = program_->methods[method_];
  expect(method.inputs.size() == kInputs && method.outputs.size() == 1,
         "method step has other inputs or outputs");
  inputs_.resize(kInputs);
  order_.resize(kInputs);
  for (size_t i = 0; i < kInputs; ++i) {
    const size_t at = spec_index(method.inputs, kNames[i]);
    const TensorSpec& spec = method.inputs[at];
    expect(spec.dtype == DType::kInt64 || spec.dtype == DType::kInt32,
           "method step, " + std::string(kNames[i]) + " are no integers");
    order_[at] = i;
    inputs_[i].dtype = spec.dtype;
    inputs_[i].memory = device_->allocate(program_->buffers[spec.buffer].bytes);
  }
  const TensorSpec& tables = method.inputs[spec_index(method.inputs, kNames[kTables])];
  expect(tables.shape.size() == 2, "method step, tables are no rows of pages");
  table_length_ = tables.shape[1];
  expect(table_length_ >= pages_of(facts_.max_context, facts_.page_tokens),
         "method step, tables have no room for the pages of a context");
  expect(sizes_of(facts_.max_step_tokens, facts_.max_requests).size() == 2,
         "method step does not take any number of rows and requests");
}

void PagedModel::find_logits() {
  const TensorSpec& spec = program_->methods[method_].outputs.front();
  const std::vector<int64_t> shape = {facts_.max_requests, facts_.vocab_size};
  expect(spec.shape == shape && spec.alloc_shape == shape && is_float(spec.dtype),
         "method step gives no scores of all tokens for each request");
  logits_dtype_ = spec.dtype;
  logits_ = device_->allocate(program_->buffers[spec.buffer].bytes);
}

// The values of the method's symbols for so many rows and requests.
std::vector<int64_t> PagedModel::sizes_of(int64_t tokens, int64_t requests) const {
  const std::array<Shape, kInputs> shapes = {
      Shape{1, tokens}, {tokens}, {tokens}, {requests, table_length_}, {requests}};
  std::vector<Shape> given;
  for (const size_t input : order_) given.push_back(shapes.at(input));
  return symbols_of(program_->methods[method_], given);
}

void PagedModel::put_rows(const StepRows& rows, int64_t request) {
  std::vector<int64_t>& tokens = inputs_[kTokens].values;
  tokens.insert(tokens.end(), rows.tokens.begin(), rows.tokens.end());
  for (size_t i = 0; i < rows.tokens.size(); ++i) {
    inputs_[kPositions].values.push_back(rows.first_position + static_cast<int64_t>(i));
    inputs_[kRequests].values.push_back(request);
  }
  std::vector<int64_t>& tables = inputs_[kTables].values;
  tables.insert(tables.end(), rows.pages.begin(), rows.pages.end());
  tables.resize(static_cast<size_t>((request + 1) * table_length_), kNoPage);
  inputs_[kRows].values.push_back(rows.wants_scores ? static_cast<int64_t>(tokens.size()) - 1 : -1);
  if (rows.wants_scores) wanted_.push_back(request);
}

void PagedModel::upload(Input& input) {
  if (input.dtype == DType::kInt64) {
    return device_->upload(*input.memory, 0, std::as_bytes(std::span(input.values)));
  }
  input.narrow.assign(input.values.begin(), input.values.end());
  device_->upload(*input.memory, 0, std::as_bytes(std::span(input.narrow)));
}

void PagedModel::start(const StepPlan& plan) {
  wanted_.clear();
  for (Input& input : inputs_) input.values.clear();
  for (size_t i = 0; i < plan.rows.size(); ++i) put_rows(plan.rows[i], static_cast<int64_t>(i));
  const auto tokens = static_cast<int64_t>(inputs_[kTokens].values.size());
  const auto requests = static_cast<int64_t>(plan.rows.size());
  require(tokens <= facts_.max_step_tokens && requests <= facts_.max_requests,
          "no more rows than a step takes");
  std::vector<Binding> bindings;
  for (const size_t input : order_) {
    upload(inputs_[input]);
    bindings.push_back(inputs_[input].memory->range());
  }
  const Binding logits = logits_->range();
  executor_.enqueue(method_, bindings, {&logits, 1}, weights_.get(), state_.get(), 0,
                    sizes_of(tokens, requests));
}

std::span<const float> PagedModel::finish() {
  executor_.settle(method_);
  scores_.resize(wanted_.size() * static_cast<size_t>(facts_.vocab_size));
  if (wanted_.empty()) return scores_;
  const int64_t bytes = facts_.vocab_size * dtype_size(logits_dtype_);
  const auto row_bytes = static_cast<size_t>(bytes);
  const std::byte* seen = logits_->host();
  if (seen == nullptr) {
    raw_.resize(static_cast<size_t>(wanted_.back() + 1) * row_bytes);
    device_->download(raw_, *logits_, 0);
    seen = raw_.data();
  }
  std::span<float> to(scores_);
  for (const int64_t request : wanted_) {
    const std::span<float> row = to.first(static_cast<size_t>(facts_.vocab_size));
    convert_floats({seen + request * bytes, row_bytes}, logits_dtype_, std::as_writable_bytes(row),
                   DType::kFloat32);
    to = to.subspan(row.size());
  }
  return scores_;
}

}  // namespace npusim::serve
