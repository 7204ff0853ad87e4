// The engine of many requests. Its thread never needs the interpreter but where the device asks
// Python for something, so whoever waits for that thread lets go of the GIL.
#include "cpp/serve/engine.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/python/bindings.h"
#include "cpp/python/packed_events.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/language_model.h"
#include "cpp/runtime/program.h"
#include "cpp/runtime/weights.h"
#include "cpp/serve/paged_model.h"

namespace py = pybind11;

namespace npusim::python {

// What Python holds: an engine with what its steps need.
class ServingEngine {
 public:
  ServingEngine(std::shared_ptr<const Program> program, std::shared_ptr<Device> device,
                std::shared_ptr<const Weights> weights, const serve::EngineOptions& options)
      : engine_(std::make_unique<serve::Engine>(
            std::make_shared<serve::PagedModel>(std::move(program), std::move(device),
                                                std::move(weights)),
            options)) {}
  ~ServingEngine() {  // what is freed afterwards may be Python's
    const py::gil_scoped_release unlocked;
    if (engine_->is_here()) engine_->close();
  }
  serve::Engine& operator*() const { return *engine_; }
  serve::Engine* operator->() const { return engine_.get(); }

 private:
  std::unique_ptr<serve::Engine> engine_;
};

namespace {

using serve::BatchStats, serve::Event, serve::RequestOptions, serve::TokenLogprob;

std::shared_ptr<ServingEngine> make(std::shared_ptr<Program> program,
                                    std::shared_ptr<Device> device, const Maybe<Weights>& weights,
                                    int64_t max_requests, int64_t max_step_tokens,
                                    bool prefix_cache, double step_seconds, int64_t patience,
                                    int64_t max_waiting) {
  const serve::EngineOptions options{.batch = {.max_requests = max_requests,
                                               .max_step_tokens = max_step_tokens,
                                               .prefix_cache = prefix_cache,
                                               .step_seconds = step_seconds,
                                               .patience = patience},
                                     .max_waiting = max_waiting};
  return std::make_shared<ServingEngine>(std::move(program), std::move(device),
                                         weights.value_or(nullptr), options);
}

std::shared_ptr<ServingEngine> of_model(const LanguageModel& model, int64_t max_requests,
                                        double step_seconds, int64_t max_waiting,
                                        double most_step_seconds) {
  serve::EngineOptions options{
      .batch = {}, .max_waiting = max_waiting, .most_step_seconds = most_step_seconds};
  options.batch.max_requests = max_requests;
  options.batch.step_seconds = step_seconds;
  return std::make_shared<ServingEngine>(model.program(), model.device(), model.weights(), options);
}

// Reads options by name; refuses names that nobody asked for.
class OptionsReader {
 public:
  explicit OptionsReader(const py::dict& given) : given_(given) {}

  template <typename T>
  void take(const char* name, T& to) {
    if (!given_.contains(name)) return;
    try {
      to = given_[name].cast<T>();
    } catch (const py::cast_error&) {
      throw py::type_error("option " + std::string(name) + " cannot be " +
                           std::string(py::repr(given_[name])));
    }
    ++taken_;
  }
  void finish(const std::vector<std::string>& known) const {
    if (taken_ == given_.size()) return;
    for (const auto& [key, value] : given_) {
      const auto name = std::string(py::str(key));
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        throw py::type_error("a request has no option " + name);
      }
    }
  }

 private:
  const py::dict& given_;
  size_t taken_ = 0;
};

RequestOptions read_options(const py::dict& given) {
  RequestOptions options;
  std::vector<std::string> known;
  OptionsReader reader(given);
  const auto take = [&](const char* name, auto& to) {
    known.emplace_back(name);
    reader.take(name, to);
  };
  SamplingOptions& sampling = options.sampling;
  take("temperature", sampling.temperature);
  take("top_k", sampling.top_k);
  take("top_p", sampling.top_p);
  take("min_p", sampling.min_p);
  take("repetition_penalty", sampling.repetition_penalty);
  take("seed", sampling.seed);
  take("max_tokens", options.max_tokens);
  take("min_tokens", options.min_tokens);
  take("stop_tokens", options.stop_tokens);
  take("ignore_eos", options.ignore_eos);
  take("presence_penalty", options.presence_penalty);
  take("frequency_penalty", options.frequency_penalty);
  take("logit_bias", options.logit_bias);
  take("logprobs", options.logprobs);
  take("prompt_logprobs", options.prompt_logprobs);
  take("priority", options.priority);
  take("salt", options.salt);
  take("prefix_cache", options.prefix_cache);
  take("masked", options.masked);
  take("follows", options.follows);
  reader.finish(known);
  return options;
}

uint64_t submit(ServingEngine& self, std::vector<int64_t> tokens, const py::dict& given,
                uint64_t reader) {
  RequestOptions options = read_options(given);
  const py::gil_scoped_release unlocked;
  return self->submit(std::move(tokens), std::move(options), reader);
}

// (token, logprob, [(token, logprob), …]) of each.
py::list records(const std::vector<TokenLogprob>& logprobs) {
  py::list out;
  for (const TokenLogprob& of : logprobs) out.append(py::make_tuple(of.token, of.logprob, of.top));
  return out;
}

py::object optional(bool is_there, const auto& make) {
  return is_there ? py::object(make()) : py::none();
}

py::list tokens_of(const Event& event) {
  py::list out;
  for (const int64_t token : event.tokens) out.append(token);
  return out;
}

py::tuple tuple_of(const Event& event) {
  const auto ending = [&] { return py::str(std::string(serve::ending_name(*event.ending))); };
  return py::make_tuple(
      event.request, tokens_of(event),
      optional(!event.logprobs.empty(), [&] { return records(event.logprobs); }),
      optional(event.prompt_logprobs.has_value(), [&] { return records(*event.prompt_logprobs); }),
      optional(event.ending.has_value(), ending),
      optional(event.error.has_value(), [&] { return python_error(*event.error); }),
      event.cached_tokens);
}

py::list poll(ServingEngine& self, double timeout) {
  std::vector<Event> events;
  {
    const py::gil_scoped_release unlocked;
    events = self->poll(timeout);
  }
  py::list out;
  for (const Event& event : events) out.append(tuple_of(event));
  return out;
}

// As `poll`, of another reader, in the bytes that npusim.serve.packed_events reads.
py::bytes poll_packed(ServingEngine& self, double timeout, uint64_t reader) {
  std::string packed;
  {
    const py::gil_scoped_release unlocked;
    packed = pack_events(self->poll(timeout, reader));
  }
  return py::bytes(packed);
}

void allow(ServingEngine& self, uint64_t request, const py::buffer& mask) {
  const py::buffer_info given = mask.request();
  const bool is_dense = given.ndim == 1 && (given.size == 0 || given.strides[0] == given.itemsize);
  if (given.itemsize != 1 || !is_dense || given.size != self->facts().vocab_size) {
    throw py::type_error("a mask is a dense bool[vocab_size]");
  }
  const auto* may = static_cast<const uint8_t*>(given.ptr);
  self->allow(request, serve::mask_of({may, static_cast<size_t>(given.size)}));
}

// Bits by token, the lowest of each byte first.
void allow_packed(ServingEngine& self, uint64_t request, const py::bytes& given) {
  const std::string_view bits(given);
  const auto words = static_cast<size_t>((self->facts().vocab_size + 31) / 32);
  if (bits.size() > words * sizeof(uint32_t)) throw py::type_error("a mask is bits[vocab_size]");
  serve::TokenMask mask(words);
  std::memcpy(mask.data(), bits.data(), bits.size());
  const py::gil_scoped_release unlocked;
  self->allow(request, std::move(mask));
}

py::dict stats(const ServingEngine& self) {
  const BatchStats of = self->stats();
  py::dict out;
  const auto put = [&](const char* name, auto value) { out[name] = value; };
  put("running", of.running);
  put("waiting", of.waiting);
  put("pages", of.pages);
  put("free_pages", of.free_pages);
  put("kept_pages", of.kept_pages);
  put("steps", of.steps);
  put("failed_steps", of.failed_steps);
  put("preemptions", of.preemptions);
  put("prompt_tokens", of.prompt_tokens);
  put("generated_tokens", of.generated_tokens);
  put("prefix_queries", of.prefix_queries);
  put("prefix_hits", of.prefix_hits);
  put("stopped", of.stopped);
  put("at_length", of.at_length);
  put("cancelled", of.cancelled);
  put("failed", of.failed);
  put("plan_seconds", of.plan_seconds);
  put("start_seconds", of.start_seconds);
  put("runner_seconds", of.runner_seconds);
  put("fill_seconds", of.starts.fill);
  put("send_seconds", of.starts.send);
  put("launch_seconds", of.starts.launch);
  put("copies", of.starts.copies);
  put("choice_seconds", of.choice_seconds);
  put("desk_seconds", of.desk_seconds);
  return out;
}

py::dict facts(const ServingEngine& self) {
  const serve::RunnerFacts& of = self->facts();
  py::dict out;
  out["vocab_size"] = of.vocab_size;
  out["max_context"] = of.max_context;
  out["page_tokens"] = of.page_tokens;
  out["pages"] = of.pages;
  out["max_step_tokens"] = of.max_step_tokens;
  out["max_requests"] = self->max_requests();
  out["eos_token_ids"] = of.eos_tokens;
  return out;
}

// The bytes that an engine takes, known before anything is allocated.
py::dict memory_of(const Program& program) {
  const DeclaredMemory memory = declared_memory(program);
  py::dict out;
  out["weights"] = memory.weights;
  out["prepared"] = memory.prepared;
  out["constants"] = memory.constants;
  out["pools"] = memory.state;
  out["arena"] = memory.arena;
  out["arguments"] = memory.arguments;
  out["total"] = memory.total();
  return out;
}

}  // namespace

void bind_engine(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<ServingEngine, std::shared_ptr<ServingEngine>>(
      module, "Engine", "Many requests to one language model, served by a thread of its own.")
      .def(py::init(&make), py::arg("program"), py::arg("device"), py::arg("weights"),
           py::kw_only(), py::arg("max_requests") = 0, py::arg("max_step_tokens") = 0,
           py::arg("prefix_cache") = true, py::arg("step_seconds") = 0.0, py::arg("patience") = 256,
           py::arg("max_waiting") = 1024, unlocked)
      .def_static("of_model", &of_model, py::arg("model"), py::kw_only(),
                  py::arg("max_requests") = 0, py::arg("step_seconds") = 0.0,
                  py::arg("max_waiting") = 1024, py::arg("most_step_seconds") = 0.0, unlocked)
      .def_static("memory", &memory_of, py::arg("program"))
      .def("submit", &submit, py::arg("tokens"), py::arg("options"), py::arg("reader") = 0)
      .def("poll", &poll, py::arg("timeout"))
      .def("poll_packed", &poll_packed, py::arg("timeout"), py::arg("reader"))
      .def(
          "leave", [](ServingEngine& self, uint64_t reader) { self->leave(reader); },
          py::arg("reader"), unlocked)
      .def(
          "cancel", [](ServingEngine& self, uint64_t request) { self->cancel(request); },
          py::arg("request"), unlocked)
      .def("allow", &allow, py::arg("request"), py::arg("mask"))
      .def("allow_packed", &allow_packed, py::arg("request"), py::arg("bits"))
      .def(
          "failure", [](const ServingEngine& self) { return self->failure(); }, unlocked)
      .def("stats", &stats)
      .def("facts", &facts)
      .def(
          "drain", [](ServingEngine& self, double timeout) { return self->drain(timeout); },
          py::arg("timeout"), unlocked)
      .def("close", [](ServingEngine& self) { self->close(); }, unlocked);
}

}  // namespace npusim::python
