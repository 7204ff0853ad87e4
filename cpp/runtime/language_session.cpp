// Saving and loading: language_session_file.cpp.
#include "cpp/runtime/language_session.h"

#include <algorithm>
#include <string>

#include "cpp/runtime/error.h"
#include "cpp/runtime/turn.h"

namespace npusim {
namespace {

constexpr const char* kBusy =
    "this session is running on another thread; fork it for a second conversation, or take turns";

}  // namespace

LanguageSession::LanguageSession(std::shared_ptr<LanguageModel> model)
    : model_(std::move(model)),
      state_(std::make_shared<State>(model_->program(), model_->device())),
      logits_(static_cast<size_t>(model_->facts().vocab_size)) {
  tokens_.reserve(static_cast<size_t>(model_->facts().max_context));
}

void LanguageSession::append(std::span<const int64_t> tokens) {
  const Turn turn(running_, kBusy);
  const int64_t before = position();
  extend_checked(tokens);
  try {
    feed_all();
  } catch (...) {
    cut(before);
    throw;
  }
}

void LanguageSession::extend(std::span<const int64_t> tokens) {
  const Turn turn(running_, kBusy);
  extend_checked(tokens);
}

bool LanguageSession::advance() {
  const Turn turn(running_, kBusy);
  return advance_once();
}

bool LanguageSession::advance_to_step() {
  const Turn turn(running_, kBusy);
  if (waiting_before_step() > 0) advance_once();
  return waiting_before_step() > 0;
}

void LanguageSession::extend_checked(std::span<const int64_t> tokens) {
  const LanguageModelFacts& facts = model_->facts();
  for (const int64_t token : tokens) {
    if (token < 0 || token >= facts.vocab_size) {
      throw Error(ErrorCode::kLimit, "Token " + std::to_string(token) +
                                         " is outside the vocabulary: tokens are 0 … " +
                                         std::to_string(facts.vocab_size - 1) + ".");
    }
  }
  const int64_t room = facts.max_context - position();
  if (static_cast<int64_t>(tokens.size()) > room) {
    throw Error(ErrorCode::kLimit,
                "The context holds " + std::to_string(facts.max_context) + " tokens; " +
                    std::to_string(position()) + " are there and " + std::to_string(tokens.size()) +
                    " more do not fit. Rewind or reset the session, or extract the model with a "
                    "larger max_context.");
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

// No recurrence can be undone: where its states are not those of the tokens fed, none are.
void LanguageSession::begin_anew_if_needed() noexcept {
  if (model_->recurrent().empty() || fed_ == 0 || recurred_ == fed_) return;
  fed_ = 0;
}

bool LanguageSession::advance_once() {
  if (!waits()) return false;
  begin_anew_if_needed();
  if (device_position_ != fed_) {
    state_->write(model_->position().buffer, 0, std::as_bytes(std::span(&fed_, 1)));
    device_position_ = fed_;
  }
  const int64_t count = model_->next_run(fed_, position() - fed_);
  const auto next =
      std::span(tokens_).subspan(static_cast<size_t>(fed_), static_cast<size_t>(count));
  const bool last = fed_ + count == position();
  device_position_ = recurred_ = -1;  // until the run has succeeded
  model_->feed(*state_, next, last ? std::span(logits_) : std::span<float>());
  fed_ += count;
  device_position_ = recurred_ = fed_;
  return !last;
}

void LanguageSession::feed_all() {
  while (advance_once()) {
  }
}

std::span<const float> LanguageSession::logits() {
  const Turn turn(running_, kBusy);
  return scores();
}

std::span<const float> LanguageSession::scores() {
  if (tokens_.empty()) {
    throw Error(ErrorCode::kLimit,
                "The session has no tokens yet, so nothing follows them. Append some first.");
  }
  feed_all();
  return logits_;
}

int64_t LanguageSession::waiting_before_step() const noexcept {
  const bool anew = waits() && !model_->recurrent().empty() && recurred_ != fed_;
  const int64_t fed = anew ? 0 : fed_;
  return std::max<int64_t>(position() - fed - (model_->generates() ? 1 : 0), 0);
}

int64_t LanguageSession::step(Sampler& sampler, bool more) {
  const Turn turn(running_, kBusy);
  const int64_t limit = model_->facts().max_context;
  if (position() == limit) {
    throw Error(ErrorCode::kLimit,
                "The context is full: " + std::to_string(limit) + " of " + std::to_string(limit) +
                    " tokens. Rewind or reset the session, or extract the model with a larger "
                    "max_context.");
  }
  while (waiting_before_step() > 0) advance_once();
  if (waits() && model_->generates()) return generate(sampler, more);
  tokens_.push_back(sampler.sample(scores(), tokens_));
  return tokens_.back();
}

// Feeds the token that waits, and puts after it what the device chooses.
int64_t LanguageSession::generate(Sampler& sampler, bool more) {
  begin_anew_if_needed();
  if (!runs_) runs_ = std::make_unique<GenerateRuns>(model_);
  const DeviceSampling sampling = sampler.on_device(position());
  const bool is_ahead = runs_->started() == 1 && device_position_ == position() &&
                        device_token_ == position() && runs_->sampling() == sampling;
  const auto start = [&] {
    ++device_position_;
    ++device_token_;
    runs_->start(*state_, sampling);
  };
  try {
    if (!is_ahead) {
      drop_runs();
      prepare_states(sampler);
      start();
    }
    // A run too many would be no loss to caches, but one to recurrent states.
    const bool another =
        position() + 1 < model_->facts().max_context && model_->recurrent().empty();
    if (more && another && !model_->device()->synchronous()) start();
    const int64_t token = runs_->finish();
    sampler.accept(token, model_->facts().vocab_size);
    tokens_.push_back(token);
  } catch (...) {
    drop_runs();
    device_position_ = device_token_ = recurred_ = -1;
    throw;
  }
  if (history_ >= fed_) history_ = device_position_;
  recurred_ = ++fed_;
  return tokens_.back();
}

// Makes the states say what the tokens do, for a run that feeds the last one.
void LanguageSession::prepare_states(const Sampler& sampler) {
  const auto put = [&](const StateTensor& state, int64_t from, std::span<const int64_t> values) {
    state_->write(state.buffer, from * dtype_size(DType::kInt64), std::as_bytes(values));
  };
  const auto all = std::span<const int64_t>(tokens_);
  if (device_position_ != fed_) put(model_->position(), 0, {&fed_, 1});
  if (device_token_ != fed_) put(model_->token(), 0, all.last(1));
  if (sampler.options().repetition_penalty != 1 && history_ < fed_) {
    put(model_->history(), history_,
        all.subspan(static_cast<size_t>(history_), static_cast<size_t>(fed_ - history_)));
    history_ = fed_;
  }
  device_position_ = device_token_ = fed_;
}

// Forgets runs that are ahead, and what they have left in the states.
void LanguageSession::drop_runs() {
  if (runs_->started() == 0) return;
  device_position_ = device_token_ = -1;
  history_ = std::min(history_, fed_);
  runs_->finish_all();
}

std::unique_ptr<LanguageSession> LanguageSession::fork() const {
  const Turn turn(running_, kBusy);
  auto twin = std::make_unique<LanguageSession>(model_);
  for (const CacheLayout& cache : model_->caches()) {
    for (int64_t block = 0; block < cache.outer; ++block) {
      twin->state_->copy_from(*state_, cache.tensor->buffer, block * cache.block_bytes(),
                              fed_ * cache.row_bytes);
    }
  }
  for (const StateTensor* state : model_->recurrent()) {
    twin->state_->copy_from(*state_, state->buffer, 0,
                            model_->program()->buffers[state->buffer].bytes);
  }
  twin->recurred_ = recurred_;
  twin->tokens_.insert(twin->tokens_.end(), tokens_.begin(), tokens_.end());
  twin->logits_ = logits_;
  twin->fed_ = fed_;
  return twin;
}

void LanguageSession::rewind(int64_t to) {
  const Turn turn(running_, kBusy);
  if (to < 0 || to > position()) {
    throw Error(ErrorCode::kLimit, "Cannot rewind to position " + std::to_string(to) +
                                       ": the session is at " + std::to_string(position()) + ".");
  }
  cut(to);
}

void LanguageSession::cut(int64_t to) {
  if (to == position()) return;
  tokens_.resize(static_cast<size_t>(to));
  fed_ = std::min(fed_, std::max<int64_t>(to - 1, 0));
  if (device_token_ >= to) device_token_ = -1;
  history_ = std::min(history_, to);
}

}  // namespace npusim
