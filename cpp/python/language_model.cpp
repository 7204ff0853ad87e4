// Language models and their sessions. Runs release the GIL; between two runs a pending Ctrl-C is
// noticed, and the session goes back to where the call found it.
#include "cpp/runtime/language_model.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <memory>

#include "cpp/python/bindings.h"
#include "cpp/runtime/language_session.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

using Tokens = std::vector<int64_t>;
using Path = std::filesystem::path;

std::shared_ptr<LanguageModel> make(std::shared_ptr<Program> program,
                                    std::shared_ptr<Device> device, const Maybe<Weights>& weights) {
  return std::make_shared<LanguageModel>(std::move(program), std::move(device),
                                         weights.value_or(nullptr));
}

// Feeds what waits, one run at a time. Throws the pending Python error.
void feed(LanguageSession& self, bool (LanguageSession::*advance)() = &LanguageSession::advance) {
  for (bool waits = true; waits;) {
    {
      const py::gil_scoped_release unlocked;
      waits = (self.*advance)();
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void append(LanguageSession& self, const Tokens& tokens) {
  const int64_t before = self.position();
  self.extend(tokens);
  try {
    feed(self);
  } catch (...) {
    self.rewind(before);
    throw;
  }
}

py::array_t<float> logits(LanguageSession& self) {
  feed(self);
  const std::span<const float> scores = self.logits();
  return py::array_t<float>(static_cast<py::ssize_t>(scores.size()), scores.data());
}

int64_t step(LanguageSession& self, Sampler& sampler, bool more) {
  feed(self, &LanguageSession::advance_to_step);
  const py::gil_scoped_release unlocked;
  return self.step(sampler, more);
}

// Appends the tokens one by one; returns the log-probability of each but the session's first.
std::vector<double> score(LanguageSession& self, const Tokens& tokens) {
  const int64_t before = self.position();
  std::vector<double> out;
  try {
    for (const int64_t token : tokens) {
      if (self.position() > 0) {
        feed(self);
        out.push_back(log_probability(self.logits(), token));
      }
      self.extend({&token, 1});  // refuses an unknown one
    }
  } catch (...) {
    self.rewind(before);
    throw;
  }
  return out;
}

}  // namespace

void bind_language_model(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<LanguageModel, std::shared_ptr<LanguageModel>>(module, "LanguageModel")
      .def(py::init(&make), py::arg("program"), py::arg("device"), py::arg("weights"), unlocked)
      .def_property_readonly("max_context",
                             [](const LanguageModel& self) { return self.facts().max_context; })
      .def_property_readonly("prefill_chunk",
                             [](const LanguageModel& self) { return self.facts().prefill_chunk; })
      .def_property_readonly("vocab_size",
                             [](const LanguageModel& self) { return self.facts().vocab_size; })
      .def_property_readonly(
          "has_step", [](const LanguageModel& self) { return self.facts().serve.has_value(); })
      .def_property_readonly("eos_token_ids",
                             [](const LanguageModel& self) { return self.facts().eos_token_ids; });
  py::class_<LanguageSession>(module, "LanguageSession")
      .def(py::init<std::shared_ptr<LanguageModel>>(), py::arg("model"))
      .def("append", &append, py::arg("tokens"))
      .def_property_readonly("logits", &logits)
      .def("step", &step, py::arg("sampler"), py::arg("more") = false)
      .def("score", &score, py::arg("tokens"))
      .def("fork", &LanguageSession::fork, unlocked)
      .def("rewind", &LanguageSession::rewind, py::arg("position"))
      .def("reset", &LanguageSession::reset)
      .def("save", &LanguageSession::save, py::arg("path"), unlocked)
      .def("load", &LanguageSession::load, py::arg("path"), unlocked)
      .def_property_readonly("position", &LanguageSession::position)
      .def_property_readonly("tokens", &LanguageSession::tokens);
}

}  // namespace npusim::python
