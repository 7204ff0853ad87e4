// Sessions on disk: a safetensors file with the tensors
//   npusim.tokens   I64 [n]
//   npusim.logits   F32 [vocab], when they are known
//   <name>          of each cache, only the rows in use: its shape with `fed` rows along its axis
//   <name>          of each recurrent state, whole
// and the metadata format, program (fingerprint, hexadecimal) and fed. Other tools may read it;
// what they wrote is checked as any other file is. Recurrent states that are not those of the
// tokens fed count for nothing: such a session is saved with `fed` 0.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "cpp/runtime/atomic_file.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/language_session.h"
#include "cpp/runtime/safetensors.h"
#include "cpp/runtime/safetensors_header.h"
#include "cpp/runtime/turn.h"
#include "cpp/runtime/utf8.h"

namespace npusim {
namespace {

constexpr const char* kBusy = "this session is running on another thread; wait until it is done";
constexpr const char* kFormat = "npusim session 1";
constexpr std::string_view kTokens = "npusim.tokens", kLogits = "npusim.logits";

std::string hexadecimal(uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return {digits.data(), end};
}

std::vector<int64_t> used_shape(const CacheLayout& cache, int64_t rows) {
  std::vector<int64_t> shape = cache.tensor->shape;
  shape[static_cast<size_t>(cache.axis)] = rows;
  return shape;
}

// A saved session, verified against a model. Its spans point into the checkpoint.
class Saved {
 public:
  Saved(const LanguageModel& model, const std::filesystem::path& path)
      : model_(model), path_(path), file_(Checkpoint::open(path)) {
    check_origin();
    read_tokens();
    read_logits();
    for (const CacheLayout& cache : model.caches()) {
      caches.push_back(
          tensor(cache.tensor->name, cache.tensor->dtype, used_shape(cache, fed)).data);
    }
    for (const StateTensor* state : model.recurrent()) {
      recurrent.push_back(tensor(state->name, state->dtype, state->shape).data);
    }
    if (file_->tensors().size() != caches.size() + recurrent.size() + (logits.empty() ? 1 : 2)) {
      refuse("it has tensors that are no part of a session");
    }
  }

  // Throws Error(kIo) when the file was changed while it was read.
  void check() const { file_->check(); }

  std::vector<int64_t> tokens;
  int64_t fed = 0;
  std::span<const std::byte> logits;  // empty when they are not known
  std::vector<std::span<const std::byte>> caches, recurrent;

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::kFormat,
                "Cannot load the session " + platform::path_text(path_) + ": " + why + ".");
  }

  std::string metadata(const char* key) const {
    const auto found = file_->metadata().find(key);
    if (found == file_->metadata().end())
      refuse("it is no saved session (no '" + std::string(key) + "')");
    return found->second;
  }

  void check_origin() {
    if (const std::string format = metadata("format"); format != kFormat) {
      const auto reader = file_->metadata().find("npusim");
      refuse("its format is " + quote_name(format) + ", and this npusim reads '" + kFormat + "'" +
             (reader == file_->metadata().end()
                  ? ""
                  : "; install npusim " + quote_name(reader->second) + " or later"));
    }
    if (metadata("program") != hexadecimal(model_.program()->fingerprint)) {
      refuse("another program saved it; load it with the .npubin file it came from");
    }
    const std::string text = metadata("fed");
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), fed);
    if (failure != std::errc() || end != text.data() + text.size()) refuse("'fed' is no number");
  }

  const CheckpointTensor& tensor(std::string_view name, DType dtype,
                                 const std::vector<int64_t>& shape) const {
    const CheckpointTensor* found = file_->find(name);
    if (found == nullptr) refuse("tensor " + quote_name(name) + " is missing");
    if (found->dtype != dtype || found->shape != shape) {
      refuse("tensor " + quote_name(name) + " has another dtype or shape than this model's");
    }
    return *found;
  }

  void read_tokens() {
    const CheckpointTensor* found = file_->find(kTokens);
    const LanguageModelFacts& facts = model_.facts();
    if (found == nullptr || found->dtype != DType::kInt64 || found->shape.size() != 1 ||
        found->shape[0] > facts.max_context) {
      refuse("its tokens are missing, or more than the context holds");
    }
    tokens.resize(static_cast<size_t>(found->shape[0]));
    std::copy(found->data.begin(), found->data.end(),
              std::as_writable_bytes(std::span(tokens)).begin());
    for (const int64_t token : tokens) {
      if (token < 0 || token >= facts.vocab_size) refuse("a token is outside the vocabulary");
    }
    if (fed < 0 || fed > found->shape[0]) refuse("'fed' is outside its tokens");
  }

  void read_logits() {
    const bool known = fed == static_cast<int64_t>(tokens.size()) && fed > 0;
    if (!known) return;
    logits = tensor(kLogits, DType::kFloat32, {model_.facts().vocab_size}).data;
  }

  const LanguageModel& model_;
  const std::filesystem::path& path_;
  std::shared_ptr<const Checkpoint> file_;
};

}  // namespace

void LanguageSession::save(const std::filesystem::path& path) const {
  const Turn turn(running_, kBusy);
  state_->require_one_rank();
  const int64_t fed = model_->recurrent().empty() || recurred_ == fed_ ? fed_ : 0;
  const bool known = fed == position() && fed > 0;
  const std::pair<std::string_view, std::string> metadata[] = {
      {"format", kFormat},
      {"program", hexadecimal(model_->program()->fingerprint)},
      {"fed", std::to_string(fed)}};
  SafetensorsHeader header(metadata);
  const int64_t count = position(), vocabulary = model_->facts().vocab_size;
  header.add(kTokens, DType::kInt64, {&count, 1});
  if (known) header.add(kLogits, DType::kFloat32, {&vocabulary, 1});
  for (const CacheLayout& cache : model_->caches()) {
    header.add(cache.tensor->name, cache.tensor->dtype, used_shape(cache, fed));
  }
  for (const StateTensor* state : model_->recurrent()) {
    header.add(state->name, state->dtype, state->shape);
  }
  AtomicFile file(path);
  header.write(file);
  file.write(std::as_bytes(std::span(tokens_)));
  if (known) file.write(std::as_bytes(std::span(logits_)));
  std::vector<std::byte> rows;
  for (const CacheLayout& cache : model_->caches()) {
    rows.resize(static_cast<size_t>(fed * cache.row_bytes));
    for (int64_t block = 0; block < cache.outer; ++block) {
      state_->read(cache.tensor->buffer, block * cache.block_bytes(), rows);
      file.write(rows);
    }
  }
  for (const StateTensor* state : model_->recurrent()) {
    rows.resize(static_cast<size_t>(model_->program()->buffers[state->buffer].bytes));
    state_->read(state->buffer, 0, rows);
    file.write(rows);
  }
  file.commit();
}

void LanguageSession::load(const std::filesystem::path& path) {
  const Turn turn(running_, kBusy);
  state_->require_one_rank();
  Saved saved(*model_, path);
  const auto fresh = std::make_shared<State>(model_->program(), model_->device());
  for (size_t i = 0; i < saved.caches.size(); ++i) {
    const CacheLayout& cache = model_->caches()[i];
    const auto bytes = static_cast<size_t>(saved.fed * cache.row_bytes);
    for (int64_t block = 0; block < cache.outer; ++block) {
      fresh->write(cache.tensor->buffer, block * cache.block_bytes(),
                   saved.caches[i].subspan(static_cast<size_t>(block) * bytes, bytes));
    }
  }
  for (size_t i = 0; i < saved.recurrent.size(); ++i) {
    fresh->write(model_->recurrent()[i]->buffer, 0, saved.recurrent[i]);
  }
  std::vector<float> logits(logits_);
  std::copy(saved.logits.begin(), saved.logits.end(),
            std::as_writable_bytes(std::span(logits)).begin());
  saved.check();
  state_ = fresh;
  logits_ = std::move(logits);
  tokens_.assign(saved.tokens.begin(), saved.tokens.end());  // has room: nothing throws from here
  fed_ = recurred_ = saved.fed;
  device_position_ = device_token_ = -1;
  history_ = 0;
}

}  // namespace npusim
