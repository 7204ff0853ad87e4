// Engines of many requests, of the C interface.
#include "cpp/serve/engine.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cpp/c_api/objects.h"
#include "cpp/platform/forks.h"
#include "cpp/serve/paged_model.h"

namespace npusim::c_api {

struct EngineObject {
  EngineObject(std::shared_ptr<serve::StepRunner> runner, const serve::EngineOptions& options)
      : engine(std::move(runner), options) {}
  serve::Engine engine;
  ForkSafeMutex mutex;               // guards what follows
  std::vector<serve::Event> unseen;  // polled, and not shown: a callback wanted no more
};

namespace {

using serve::Event, serve::RequestOptions;

serve::EngineOptions engine_options(const npusim_engine_options* options) {
  const auto given = read_struct(options, "npusim_engine_options");
  serve::EngineOptions read;
  read.batch = {.max_requests = given.max_requests,
                .max_step_tokens = given.max_step_tokens,
                .prefix_cache = given.no_prefix_cache == 0,
                .step_seconds = given.step_seconds,
                .patience = given.patience == 0 ? read.batch.patience : given.patience};
  if (given.max_waiting == -1) {
    read.max_waiting = 0;
  } else if (given.max_waiting != 0) {
    read.max_waiting = given.max_waiting;
  }
  return read;
}

// What is zero means: as many as the context holds. -1 means none.
int64_t max_tokens(int64_t given) {
  if (given < -1) {
    throw Error(ErrorCode::kLimit,
                "max_tokens is a count, 0 for as many as fit, or -1 for none; "
                "got " +
                    std::to_string(given));
  }
  return given == 0 ? -1 : std::max<int64_t>(given, 0);
}

RequestOptions request_options(const npusim_request_options* options) {
  const auto given = read_struct(options, "npusim_request_options");
  const auto stops = elements(given.stop_tokens, given.stop_token_count, "stop_tokens");
  const auto biased = elements(given.bias_tokens, given.bias_count, "bias_tokens");
  const auto biases = elements(given.bias_values, given.bias_count, "bias_values");
  RequestOptions read;
  read.sampling = {
      .temperature = given.temperature,
      .top_k = given.top_k,
      .top_p = given.top_p == 0 ? 1 : given.top_p,
      .min_p = given.min_p,
      .repetition_penalty = given.repetition_penalty == 0 ? 1 : given.repetition_penalty,
      .seed = given.seed};
  read.max_tokens = max_tokens(given.max_tokens);
  read.min_tokens = given.min_tokens;
  read.stop_tokens.assign(stops.begin(), stops.end());
  read.ignore_eos = given.ignore_eos != 0;
  read.presence_penalty = given.presence_penalty;
  read.frequency_penalty = given.frequency_penalty;
  for (size_t i = 0; i < biased.size(); ++i) read.logit_bias.emplace_back(biased[i], biases[i]);
  read.logprobs = given.log_probabilities != 0 ? 0 : -1;
  read.priority = given.priority;
  read.salt = text_or_empty(given.salt);
  read.prefix_cache = given.no_prefix_cache == 0;
  read.masked = given.masked != 0;
  read.follows = given.follows;
  return read;
}

// Shows an event to the caller, who may want no more.
void show(const Event& event, int (*on_event)(void*, const npusim_engine_event*), void* context) {
  std::vector<double> logprobs;
  for (const serve::TokenLogprob& of : event.logprobs) logprobs.push_back(of.logprob);
  const bool is_stopped = event.ending == serve::Ending::kStop;
  const npusim_engine_event shown{
      .struct_size = sizeof(npusim_engine_event),
      .request = event.request,
      .tokens = event.tokens.data(),
      .token_count = event.tokens.size(),
      .log_probabilities = logprobs.empty() ? nullptr : logprobs.data(),
      .cached_tokens = event.cached_tokens,
      .has_ended = event.is_last() ? 1 : 0,
      .reason = is_stopped ? NPUSIM_FINISHED_STOP : NPUSIM_FINISHED_LENGTH,
      .status = event.error ? status_of(event.error->code()) : NPUSIM_OK,
      .reserved = 0,
      .error = event.error ? event.error->what() : ""};
  if (call_back(on_event, context, &shown) != 0) throw_cancelled("on_event asked for it");
}

// Shows all events; those behind one at which the caller wanted no more are kept.
void show_all(EngineObject& held, std::vector<Event> events,
              int (*on_event)(void*, const npusim_engine_event*), void* context) {
  size_t seen = 0;
  try {
    while (seen < events.size()) show(events[seen++], on_event, context);
  } catch (...) {
    const std::lock_guard lock(held.mutex);
    held.unseen.insert(held.unseen.end(), std::make_move_iterator(events.begin() + seen),
                       std::make_move_iterator(events.end()));
    throw;
  }
}

}  // namespace
}  // namespace npusim::c_api

using namespace npusim;
using namespace npusim::c_api;

void npusim_engine_free(npusim_engine* engine) {
  free_handle(engine);
}

npusim_status npusim_engine_create(npusim_program* program, npusim_device* device,
                                   npusim_weights* weights, const npusim_engine_options* options,
                                   npusim_engine** engine) {
  return guarded([&] {
    require(engine, "engine");
    const serve::EngineOptions given = engine_options(options);
    const auto held = object_or_null(weights);
    auto runner =
        std::make_shared<serve::PagedModel>(object(program)->program, object(device)->device,
                                            held == nullptr ? nullptr : held->weights);
    give(engine, std::make_shared<EngineObject>(std::move(runner), given));
  });
}

npusim_status npusim_engine_get_info(npusim_engine* handle, npusim_engine_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    const serve::RunnerFacts& facts = held->engine.facts();
    write_struct(info,
                 {.struct_size = 0,
                  .vocab_size = facts.vocab_size,
                  .max_context = facts.max_context,
                  .page_tokens = facts.page_tokens,
                  .pages = facts.pages,
                  .max_requests = held->engine.max_requests(),
                  .max_step_tokens = facts.max_step_tokens,
                  .eos_token_ids = facts.eos_tokens.data(),
                  .eos_token_count = facts.eos_tokens.size()},
                 "npusim_engine_info");
  });
}

npusim_status npusim_engine_submit(npusim_engine* handle, const int64_t* tokens, size_t count,
                                   const npusim_request_options* options, uint64_t* request) {
  return guarded([&] {
    const auto held = object(handle);
    require(request, "request");
    const auto given = elements(tokens, count, "tokens");
    *request = held->engine.submit({given.begin(), given.end()}, request_options(options));
  });
}

npusim_status npusim_engine_cancel(npusim_engine* handle, uint64_t request) {
  return guarded([&] {
    const auto held = object(handle);
    held->engine.cancel(request);
    const std::lock_guard lock(held->mutex);
    std::erase_if(held->unseen, [&](const Event& event) { return event.request == request; });
  });
}

npusim_status npusim_engine_allow(npusim_engine* handle, uint64_t request, const uint8_t* mask,
                                  size_t count) {
  return guarded([&] {
    const auto held = object(handle);
    const auto given = elements(mask, count, "mask");
    if (static_cast<int64_t>(count) != held->engine.facts().vocab_size) {
      throw Error(ErrorCode::kInput, "a mask of " + std::to_string(count) +
                                         " tokens; it must have one byte for each token, " +
                                         std::to_string(held->engine.facts().vocab_size));
    }
    held->engine.allow(request, serve::mask_of(given));
  });
}

npusim_status npusim_engine_poll(npusim_engine* handle, double seconds,
                                 int (*on_event)(void*, const npusim_engine_event*),
                                 void* context) {
  return guarded([&] {
    const auto held = object(handle);
    if (on_event == nullptr) throw Error(ErrorCode::kInput, "on_event is null");
    std::vector<Event> events;
    {
      const std::lock_guard lock(held->mutex);
      events.swap(held->unseen);
    }
    if (events.empty()) events = held->engine.poll(seconds);
    show_all(*held, std::move(events), on_event, context);
  });
}

npusim_status npusim_engine_get_stats(npusim_engine* handle, npusim_engine_stats* stats) {
  return guarded([&] {
    const serve::BatchStats of = object(handle)->engine.stats();
    write_struct(stats,
                 {.struct_size = 0,
                  .running = of.running,
                  .waiting = of.waiting,
                  .pages = of.pages,
                  .free_pages = of.free_pages,
                  .kept_pages = of.kept_pages,
                  .steps = of.steps,
                  .failed_steps = of.failed_steps,
                  .preemptions = of.preemptions,
                  .prompt_tokens = of.prompt_tokens,
                  .generated_tokens = of.generated_tokens,
                  .prefix_queries = of.prefix_queries,
                  .prefix_hits = of.prefix_hits,
                  .runner_seconds = of.runner_seconds},
                 "npusim_engine_stats");
  });
}

npusim_status npusim_engine_drain(npusim_engine* handle, double seconds, int32_t* has_ended) {
  return guarded([&] {
    const bool ended = object(handle)->engine.drain(seconds);
    if (has_ended != nullptr) *has_ended = ended ? 1 : 0;
  });
}

npusim_status npusim_engine_close(npusim_engine* handle) {
  return guarded([&] { object(handle)->engine.close(); });
}
