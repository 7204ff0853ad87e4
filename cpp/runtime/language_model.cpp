#include "cpp/runtime/language_model.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "cpp/runtime/convert.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/prompt_runs.h"
#include "cpp/runtime/utf8.h"
#include "kernels/shared/sampling.h"

namespace npusim {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kFormat,
              "The program is no sound language model: " + why + ". Compile the model again.");
}

void require(bool holds, const std::string& why) {
  if (!holds) refuse(why);
}

size_t method_of(const Program& program, std::string_view name) {
  for (size_t i = 0; i < program.methods.size(); ++i) {
    if (program.methods[i].name == name) return i;
  }
  refuse("it has no method " + std::string(name));
}

const TensorSpec* find_spec(const std::vector<TensorSpec>& specs, std::string_view name) {
  const auto found = std::find_if(specs.begin(), specs.end(),
                                  [&](const TensorSpec& spec) { return spec.name == name; });
  return found == specs.end() ? nullptr : &*found;
}

int64_t elements(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

// The caller's tensor of that name, which must hold `count` elements without padding.
const TensorSpec& tensor_of(const Method& method, const std::vector<TensorSpec>& specs,
                            std::string_view name, int64_t count) {
  const TensorSpec* spec = find_spec(specs, name);
  const std::string what = "method " + std::string(method.name) + ", " + std::string(name);
  if (spec == nullptr) refuse(what + " is missing");
  require(spec->shape == spec->alloc_shape && elements(spec->shape) == count,
          what + " does not hold " + std::to_string(count) + " elements");
  return *spec;
}

Metadata language_model_metadata(const Program& program) {
  Metadata metadata = read_metadata(program);
  if (metadata.language_model) return metadata;
  throw Error(ErrorCode::kInput,
              "The program is no language model: its metadata has no 'language_model'. Compile "
              "what npusim.extract_llm returns.");
}

CacheLayout layout_of(const StateTensor& tensor, int64_t axis) {
  const std::span<const int64_t> shape = tensor.shape;
  const auto at = static_cast<size_t>(axis);
  return {.tensor = &tensor,
          .axis = axis,
          .outer = elements(shape.first(at)),
          .capacity = shape[at],
          .row_bytes = elements(shape.subspan(at + 1)) * dtype_size(tensor.dtype)};
}

// Where inputs, results and states lie: with ranks that have memory of their own, on all of their
// devices; ranks on the host share what it has.
std::shared_ptr<Device> home_of(std::shared_ptr<Device> device, const Program& program) {
  std::shared_ptr<Device> ranks = admit(device, program);
  return ranks->synchronous() ? device : ranks;
}

}  // namespace

LanguageModel::LanguageModel(std::shared_ptr<const Program> program, std::shared_ptr<Device> device,
                             std::shared_ptr<const Weights> weights)
    : program_(std::move(program)),
      device_(home_of(std::move(device), *program_)),
      weights_(std::move(weights)),
      executor_(program_, device_) {
  Metadata metadata = language_model_metadata(*program_);
  states_ = std::move(metadata.states);
  facts_ = std::move(*metadata.language_model);
  check_facts();
  place_states();
  if (facts_.prefill_chunk > 1) {
    prefills_.push_back(make_call("prefill", facts_.prefill_chunk, true));
  }
  for (const int64_t chunk : facts_.larger_chunks) {
    prefills_.push_back(make_call("prefill_" + std::to_string(chunk), chunk, true));
  }
  decode_ = make_call("decode", 1, false);
  if (generates()) find_generate();
  if (weights_ != nullptr) weights_->check_now();
}

std::shared_ptr<LanguageModel> LanguageModel::open(const std::filesystem::path& program_path,
                                                   const std::filesystem::path& weights_path,
                                                   std::shared_ptr<Device> device) {
  auto program = Program::open(program_path);
  auto weights = Weights::load(program, device, open_checkpoint(weights_path), {});
  return std::make_shared<LanguageModel>(std::move(program), std::move(device), std::move(weights));
}

void LanguageModel::check_facts() const {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  require(facts_.max_context >= 1 && facts_.max_context <= kMost,
          "max_context is " + std::to_string(facts_.max_context));
  require(facts_.prefill_chunk >= 1 && facts_.prefill_chunk <= kMost,
          "prefill_chunk is " + std::to_string(facts_.prefill_chunk));
  for (size_t i = 0; i < facts_.larger_chunks.size(); ++i) {
    const int64_t below = i == 0 ? facts_.prefill_chunk : facts_.larger_chunks[i - 1];
    require(facts_.larger_chunks[i] > below && facts_.larger_chunks[i] <= kMost,
            "larger_chunks do not ascend from prefill_chunk");
  }
  require(facts_.vocab_size >= 1 && facts_.vocab_size <= kMost,
          "vocab_size is " + std::to_string(facts_.vocab_size));
}

// Every state is the position, a cache, a recurrent one, or what `generate` goes by: a session
// knows how to copy, rewind and save these.
void LanguageModel::place_states() {
  const auto find = [&](const std::string& name) -> const StateTensor& {
    const auto found = std::find_if(states_.begin(), states_.end(),
                                    [&](const StateTensor& state) { return state.name == name; });
    if (found == states_.end()) refuse("it has no state " + quote_name(name));
    return *found;
  };
  position_ = &find(facts_.position);
  require(position_->dtype == DType::kInt64 && elements(position_->shape) == 1,
          "state " + quote_name(position_->name) + " is no single int64");
  std::vector<const StateTensor*> placed = {position_};
  for (const CacheFacts& cache : facts_.caches) {
    const StateTensor& tensor = find(cache.state);
    require(cache.axis < static_cast<int64_t>(tensor.shape.size()) &&
                tensor.shape[static_cast<size_t>(cache.axis)] >= facts_.max_context,
            "cache " + quote_name(cache.state) + " has no room for " +
                std::to_string(facts_.max_context) + " tokens along axis " +
                std::to_string(cache.axis));
    require(std::find(placed.begin(), placed.end(), &tensor) == placed.end(),
            "cache " + quote_name(cache.state) + " appears twice");
    placed.push_back(&tensor);
    caches_.push_back(layout_of(tensor, cache.axis));
  }
  for (const std::string& name : facts_.recurrent) {
    const StateTensor& tensor = find(name);
    require(std::find(placed.begin(), placed.end(), &tensor) == placed.end(),
            "recurrent state " + quote_name(name) + " is another one, too");
    placed.push_back(&tensor);
    recurrent_.push_back(&tensor);
  }
  if (!facts_.token.empty()) {
    token_ = &find(facts_.token);
    history_ = &find(facts_.history);
    require(token_->dtype == DType::kInt64 && elements(token_->shape) == 1,
            "state " + quote_name(token_->name) + " is no single int64");
    require(history_->dtype == DType::kInt64 && elements(history_->shape) >= facts_.max_context,
            "state " + quote_name(history_->name) + " has no room for " +
                std::to_string(facts_.max_context) + " tokens of int64");
    placed.insert(placed.end(), {token_, history_});
    std::vector<const StateTensor*> distinct = placed;
    std::sort(distinct.begin(), distinct.end());
    require(std::adjacent_find(distinct.begin(), distinct.end()) == distinct.end(),
            "the token's or the history's state is another one, too");
  }
  if (facts_.serve) {  // no session's, but of engines over the same program
    for (const std::string& name : facts_.serve->pools) {
      const StateTensor& tensor = find(name);
      require(std::find(placed.begin(), placed.end(), &tensor) == placed.end(),
              "pool " + quote_name(name) + " is another state, too");
      placed.push_back(&tensor);
    }
  }
  const auto held =
      std::count_if(program_->buffers.begin(), program_->buffers.end(),
                    [](const Buffer& buffer) { return buffer.kind == BufferKind::kState; });
  require(static_cast<size_t>(held) == placed.size(),
          "it has states that are neither its position, a cache nor recurrent, nor generate's");
}

LanguageModel::Call LanguageModel::make_call(const std::string& name, int64_t tokens,
                                             bool has_length) {
  Call call;
  call.tokens = tokens;
  call.method = method_of(*program_, name);
  const Method& method = program_->methods[call.method];
  const auto take = [&](const TensorSpec& spec) {
    return device_->allocate(program_->buffers[spec.buffer].bytes);
  };
  const TensorSpec& ids = tensor_of(method, method.inputs, "tokens", tokens);
  const TensorSpec& logits = tensor_of(method, method.outputs, "logits", facts_.vocab_size);
  require(ids.dtype == DType::kInt64, "method " + name + ", tokens are no int64");
  require(is_float(logits.dtype), "method " + name + ", logits are no floats");
  call.logits_dtype = logits.dtype;
  call.tokens_memory = take(ids);
  call.logits_memory = take(logits);
  if (has_length) {
    const TensorSpec& length = tensor_of(method, method.inputs, "length", 1);
    require(length.dtype == DType::kInt64, "method " + name + ", length is no int64");
    call.length_memory = take(length);
  }
  require(method.inputs.size() == (has_length ? 2 : 1) && method.outputs.size() == 1,
          "method " + name + " has other inputs or outputs");
  for (const TensorSpec& spec : method.inputs) {
    call.inputs.push_back((&spec == &ids ? call.tokens_memory : call.length_memory)->range());
  }
  call.outputs = {call.logits_memory->range()};
  return call;
}

void LanguageModel::find_generate() {
  generate_ = method_of(*program_, "generate");
  const Method& method = program_->methods[generate_];
  const auto check = [&](const std::vector<TensorSpec>& specs, std::string_view name, DType dtype,
                         int64_t count) {
    require(tensor_of(method, specs, name, count).dtype == dtype,
            "method generate, " + std::string(name) + " has another dtype");
  };
  check(method.inputs, "sampling", DType::kFloat64, sizeof(sampling::Options) / sizeof(double));
  check(method.inputs, "seed", DType::kInt64, 1);
  check(method.outputs, "chosen", DType::kInt64, 1);
  require(method.inputs.size() == 2 && method.inputs[0].name == "sampling" &&
              method.outputs.size() == 1,
          "method generate has other inputs or outputs");
}

int64_t LanguageModel::next_run(int64_t position, int64_t waiting) const noexcept {
  return npusim::next_run(facts_, position, waiting);
}

// The method for a run that next_run chose.
LanguageModel::Call& LanguageModel::call_for(size_t tokens) {
  const int64_t chunk = chunk_of(facts_, static_cast<int64_t>(tokens));
  if (tokens == 1) return decode_;
  const auto is_it = [&](const Call& call) { return call.tokens == chunk; };
  return *std::find_if(prefills_.begin(), prefills_.end() - 1, is_it);
}

void LanguageModel::check_feed(size_t tokens, size_t logits) const {
  const int64_t most = prefills_.empty() ? 1 : prefills_.back().tokens;
  if (tokens == 0 || tokens > static_cast<size_t>(most)) {
    throw Error(ErrorCode::kInput, "a run takes 1 … " + std::to_string(most) + " tokens, got " +
                                       std::to_string(tokens) + "; next_run says how many");
  }
  const auto fills = [&](const Call& call) { return static_cast<size_t>(call.tokens) == tokens; };
  if (!recurrent_.empty() && tokens != 1 &&
      std::none_of(prefills_.begin(), prefills_.end(), fills)) {
    throw Error(ErrorCode::kInput, "padding must not reach recurrent states, and no method takes " +
                                       std::to_string(tokens) + " tokens; next_run says how many");
  }
  if (logits != 0 && logits != static_cast<size_t>(facts_.vocab_size)) {
    throw Error(ErrorCode::kInput, "there are " + std::to_string(facts_.vocab_size) +
                                       " scores, and room for " + std::to_string(logits));
  }
}

void LanguageModel::check_generates() const {
  if (generates()) return;
  throw Error(ErrorCode::kInput, "the language model has no method generate");
}

const StateTensor& LanguageModel::token() const {
  check_generates();
  return *token_;
}

const StateTensor& LanguageModel::history() const {
  check_generates();
  return *history_;
}

void LanguageModel::feed(State& state, std::span<const int64_t> tokens, std::span<float> logits) {
  check_feed(tokens.size(), logits.size());
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  Call& call = call_for(tokens.size());
  device_->upload(*call.tokens_memory, 0, std::as_bytes(tokens));
  if (call.length_memory) {
    const auto length = static_cast<int64_t>(tokens.size());
    device_->upload(*call.length_memory, 0, std::as_bytes(std::span(&length, 1)));
  }
  executor_.enqueue(call.method, call.inputs, call.outputs, weights_.get(), &state, 0);
  std::unique_ptr<Download> download;  // starts when the run ends, not when the host has seen that
  const std::byte* seen = call.logits_memory->host();
  const bool downloads = !logits.empty() && seen == nullptr;
  if (downloads) download = device_->start_download(call.logits_memory);
  executor_.settle(call.method);
  if (logits.empty()) return;
  const std::span<const std::byte> raw =
      downloads ? std::span<const std::byte>(download->wait())
                : std::span(seen, static_cast<size_t>(call.logits_memory->bytes()));
  convert_floats(raw, call.logits_dtype, std::as_writable_bytes(logits), DType::kFloat32);
}

void LanguageModel::start_generate(State& state, const Memory& sampling, const Memory& seed,
                                   const Memory& chosen) {
  check_generates();
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  const Binding inputs[] = {sampling.range(), seed.range()}, outputs[] = {chosen.range()};
  executor_.enqueue(generate_, inputs, outputs, weights_.get(), &state, 0);
}

void LanguageModel::settle_generate() {
  check_generates();
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  executor_.settle(generate_);
}

}  // namespace npusim
