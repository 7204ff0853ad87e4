// State: what the runs of a program leave behind, as Python holds it.
#include "cpp/runtime/state.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "cpp/python/bindings.h"
#include "cpp/runtime/metadata.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

std::shared_ptr<State> make(std::shared_ptr<Program> program, std::shared_ptr<Device> device) {
  return std::make_shared<State>(std::move(program), std::move(device));
}

// (name, buffer, dtype, shape) of each tensor.
py::list tensors(const State& self) {
  py::list out;
  for (const StateTensor& tensor : read_metadata(*self.program()).states) {
    out.append(py::make_tuple(tensor.name, tensor.buffer, dtype_name(tensor.dtype),
                              py::tuple(py::cast(tensor.shape))));
  }
  return out;
}

py::bytes read(const State& self, uint32_t buffer) {
  const auto& buffers = self.program()->buffers;
  const int64_t size = buffer < buffers.size() ? buffers[buffer].bytes : 0;
  std::string bytes(static_cast<size_t>(size), '\0');
  self.read(buffer, 0, std::as_writable_bytes(std::span(bytes)));
  return py::bytes(bytes);
}

void write(State& self, uint32_t buffer, const py::bytes& given) {
  self.require_one_rank();
  self.write(buffer, 0, std::as_bytes(std::span(std::string_view(given))));
}

}  // namespace

void bind_state(py::module_& module) {
  py::class_<State, std::shared_ptr<State>>(module, "State",
                                            "The state of one session; zero at first.")
      .def(py::init(&make), py::arg("program"), py::arg("device"))
      .def("copy", &State::copy, "Another state with the same content.")
      .def("tensors", &tensors)
      .def("read", &read, py::arg("buffer"))
      .def("write", &write, py::arg("buffer"), py::arg("bytes"));
}

}  // namespace npusim::python
