// Language models, their sessions and samplers, of the C interface.
#include "cpp/runtime/language_model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "cpp/c_api/objects.h"
#include "cpp/runtime/generate.h"
#include "cpp/runtime/language_session.h"
#include "cpp/runtime/sampler.h"

namespace npusim::c_api {

struct LanguageModelObject {
  std::shared_ptr<LanguageModel> model;
};
struct LanguageSessionObject {
  explicit LanguageSessionObject(std::unique_ptr<LanguageSession> made)
      : session(std::move(made)) {}
  std::unique_ptr<LanguageSession> session;
  TurnFlag turn{0};
};
struct SamplerObject {
  explicit SamplerObject(const SamplingOptions& options) : sampler(options) {}
  Sampler sampler;
  TurnFlag turn{0};
};

namespace {

constexpr const char* kSamplerBusy = "this sampler is in use by another call; give each its own";

// A session that one call has for itself.
class HeldSession {
 public:
  explicit HeldSession(npusim_language_session* handle)
      : held_(object(handle)),
        turn_(held_->turn, "this session is in use by another call; take turns, or fork it") {}
  LanguageSession* operator->() const { return held_->session.get(); }
  LanguageSession& operator*() const { return *held_->session; }

 private:
  std::shared_ptr<LanguageSessionObject> held_;
  Turn turn_;
};

class HeldSampler {
 public:
  explicit HeldSampler(npusim_sampler* handle)
      : held_(object(handle)), turn_(held_->turn, kSamplerBusy) {}
  Sampler& operator*() const { return held_->sampler; }

 private:
  std::shared_ptr<SamplerObject> held_;
  Turn turn_;
};

// Leaves the session as it was where the action throws.
template <typename Action>
void or_as_before(LanguageSession& session, const Action& action) {
  const int64_t before = session.position();
  try {
    action();
  } catch (...) {
    session.rewind(before);
    throw;
  }
}

SamplingOptions sampling_options(const npusim_sampler_options* options) {
  const auto given = read_struct(options, "npusim_sampler_options");
  return {.temperature = given.temperature,
          .top_k = given.top_k,
          .top_p = given.top_p == 0 ? 1 : given.top_p,
          .min_p = given.min_p,
          .repetition_penalty = given.repetition_penalty == 0 ? 1 : given.repetition_penalty,
          .seed = given.seed};
}

GenerationOptions generation(const npusim_generation_options& given) {
  if (given.max_new_tokens < 0) {
    throw Error(ErrorCode::kLimit, "max_new_tokens is a count, or 0 for as many as fit; got " +
                                       std::to_string(given.max_new_tokens));
  }
  const auto stops = elements(given.stop_tokens, given.stop_token_count, "stop_tokens");
  GenerationOptions options{.max_new_tokens = given.max_new_tokens,
                            .stop_at_eos = given.ignore_eos == 0,
                            .stop_tokens = {stops.begin(), stops.end()},
                            .stop_sequences = {}};
  for (const npusim_token_sequence& it :
       read_structs(given.stop_sequences, given.stop_sequence_count, "stop_sequences")) {
    const auto tokens = elements(it.tokens, it.count, "the tokens of a stop sequence");
    options.stop_sequences.emplace_back(tokens.begin(), tokens.end());
  }
  return options;
}

}  // namespace
}  // namespace npusim::c_api

using namespace npusim;
using namespace npusim::c_api;

void npusim_language_model_free(npusim_language_model* model) {
  free_handle(model);
}

npusim_status npusim_language_model_create(npusim_program* program, npusim_device* device,
                                           npusim_weights* weights, npusim_language_model** model) {
  return guarded([&] {
    require(model, "model");
    const auto held = object_or_null(weights);
    auto made = std::make_shared<LanguageModelObject>();
    made->model = std::make_shared<LanguageModel>(object(program)->program, object(device)->device,
                                                  held == nullptr ? nullptr : held->weights);
    give(model, std::move(made));
  });
}

npusim_status npusim_language_model_get_info(npusim_language_model* handle,
                                             npusim_language_model_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    const LanguageModelFacts& facts = held->model->facts();
    write_struct(info,
                 {.struct_size = 0,
                  .max_context = facts.max_context,
                  .prefill_chunk = facts.prefill_chunk,
                  .vocab_size = facts.vocab_size,
                  .eos_token_ids = facts.eos_token_ids.data(),
                  .eos_token_count = facts.eos_token_ids.size()},
                 "npusim_language_model_info");
  });
}

void npusim_language_session_free(npusim_language_session* session) {
  free_handle(session);
}

npusim_status npusim_language_session_create(npusim_language_model* model,
                                             npusim_language_session** session) {
  return guarded([&] {
    require(session, "session");
    give(session, std::make_shared<LanguageSessionObject>(
                      std::make_unique<LanguageSession>(object(model)->model)));
  });
}

npusim_status npusim_language_session_append(npusim_language_session* handle, const int64_t* tokens,
                                             size_t count, npusim_should_cancel should_cancel,
                                             void* context) {
  return guarded([&] {
    const HeldSession session(handle);
    const auto given = elements(tokens, count, "tokens");
    or_as_before(*session, [&] {
      session->extend(given);
      for (bool waits = true; waits; stop_if(should_cancel, context)) waits = session->advance();
    });
  });
}

npusim_status npusim_language_session_position(npusim_language_session* handle, int64_t* position) {
  return guarded([&] {
    const HeldSession session(handle);
    require(position, "position");
    *position = session->position();
  });
}

npusim_status npusim_language_session_tokens(npusim_language_session* handle, int64_t first,
                                             int64_t* tokens, size_t count) {
  return guarded([&] {
    const HeldSession session(handle);
    const auto out = elements(tokens, count, "tokens");
    const std::vector<int64_t>& all = session->tokens();
    const auto size = static_cast<int64_t>(all.size());
    if (first < 0 || first > size || static_cast<int64_t>(count) > size - first) {
      throw Error(ErrorCode::kLimit, "the session has " + std::to_string(size) + " tokens");
    }
    std::copy_n(all.begin() + first, count, out.begin());
  });
}

npusim_status npusim_language_session_logits(npusim_language_session* handle, float* logits,
                                             size_t count) {
  return guarded([&] {
    const HeldSession session(handle);
    const auto out = elements(logits, count, "logits");
    const std::span<const float> scores = session->logits();
    if (scores.size() != out.size()) {
      throw Error(ErrorCode::kInput, "there are " + std::to_string(scores.size()) +
                                         " scores, and room for " + std::to_string(out.size()));
    }
    std::copy(scores.begin(), scores.end(), out.begin());
  });
}

npusim_status npusim_language_session_step(npusim_language_session* handle, npusim_sampler* sampler,
                                           int32_t more, int64_t* token) {
  return guarded([&] {
    const HeldSession session(handle);
    const HeldSampler chooser(sampler);
    require(token, "token");
    *token = session->step(*chooser, more != 0);
  });
}

npusim_status npusim_language_session_generate(npusim_language_session* handle,
                                               npusim_sampler* sampler,
                                               const npusim_generation_options* options,
                                               npusim_generation* made) {
  return guarded([&] {
    const HeldSession session(handle);
    const HeldSampler chooser(sampler);
    const auto given = read_struct(options, "npusim_generation_options");
    if (made != nullptr) read_struct(made, "npusim_generation");  // refused before tokens are made
    std::function<bool(int64_t)> on_token;
    if (given.on_token != nullptr) {
      on_token = [&](int64_t token) {
        return call_back(given.on_token, given.context, token) == 0;
      };
    }
    const Generation text = generate(*session, *chooser, generation(given), on_token);
    if (made == nullptr) return;
    write_struct(made,
                 {.struct_size = 0,
                  .token_count = text.tokens.size(),
                  .reason = static_cast<npusim_finish_reason>(text.reason),
                  .reserved = 0},
                 "npusim_generation");
  });
}

npusim_status npusim_language_session_score(npusim_language_session* handle, const int64_t* tokens,
                                            size_t count, double* log_probabilities) {
  return guarded([&] {
    const HeldSession session(handle);
    const auto given = elements(tokens, count, "tokens");
    const auto out = elements(log_probabilities, count, "log_probabilities");
    std::vector<double> scores(out.size());
    or_as_before(*session, [&] {
      for (size_t i = 0; i < given.size(); ++i) {
        if (session->position() > 0) scores[i] = log_probability(session->logits(), given[i]);
        session->extend({&given[i], 1});  // refuses an unknown one
      }
    });
    std::copy(scores.begin(), scores.end(), out.begin());
  });
}

npusim_status npusim_language_session_fork(npusim_language_session* handle,
                                           npusim_language_session** fork) {
  return guarded([&] {
    const HeldSession session(handle);
    require(fork, "fork");
    give(fork, std::make_shared<LanguageSessionObject>(session->fork()));
  });
}

npusim_status npusim_language_session_rewind(npusim_language_session* handle, int64_t position) {
  return guarded([&] { HeldSession(handle)->rewind(position); });
}

npusim_status npusim_language_session_save(npusim_language_session* handle, const char* path) {
  return guarded([&] { HeldSession(handle)->save(path_argument(path)); });
}

npusim_status npusim_language_session_load(npusim_language_session* handle, const char* path) {
  return guarded([&] { HeldSession(handle)->load(path_argument(path)); });
}

void npusim_sampler_free(npusim_sampler* sampler) {
  free_handle(sampler);
}

npusim_status npusim_sampler_create(const npusim_sampler_options* options,
                                    npusim_sampler** sampler) {
  return guarded([&] {
    require(sampler, "sampler");
    give(sampler, std::make_shared<SamplerObject>(sampling_options(options)));
  });
}

npusim_status npusim_sampler_sample(npusim_sampler* handle, const float* logits, size_t count,
                                    const int64_t* history, size_t history_count, int64_t* token) {
  return guarded([&] {
    const HeldSampler sampler(handle);
    require(token, "token");
    *token = (*sampler).sample(elements(logits, count, "logits"),
                               elements(history, history_count, "history"));
  });
}
