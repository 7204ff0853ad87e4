#include "cpp/runtime/sampler.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>

#include "cpp/python/bindings.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::shared_ptr<Sampler> make(double temperature, int64_t top_k, double top_p, double min_p,
                              double repetition_penalty, uint64_t seed) {
  return std::make_shared<Sampler>(SamplingOptions{.temperature = temperature,
                                                   .top_k = top_k,
                                                   .top_p = top_p,
                                                   .min_p = min_p,
                                                   .repetition_penalty = repetition_penalty,
                                                   .seed = seed});
}

int64_t sample(Sampler& self, const Floats& logits, const std::vector<int64_t>& history) {
  return self.sample({logits.data(), static_cast<size_t>(logits.size())}, history);
}

}  // namespace

void bind_sampler(py::module_& module) {
  py::class_<Sampler, std::shared_ptr<Sampler>>(module, "Sampler",
                                                "Chooses the next token from the scores of all.")
      .def(py::init(&make), py::kw_only(), py::arg("temperature") = 0.0, py::arg("top_k") = 0,
           py::arg("top_p") = 1.0, py::arg("min_p") = 0.0, py::arg("repetition_penalty") = 1.0,
           py::arg("seed") = 0)
      .def("sample", &sample, py::arg("logits"), py::arg("history") = std::vector<int64_t>());
}

}  // namespace npusim::python
