// The Python module npusim._runtime: a thin face of the C++ runtime. What people call lies in
// python/npusim/runtime; what stands here is what that package needs.
#include <pybind11/pybind11.h>

#include <string_view>

#include "cpp/python/bindings.h"

namespace py = pybind11;

namespace npusim::python {

const char* class_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kFormat:
    case ErrorCode::kVersion:
      return "ProgramFormatError";
    case ErrorCode::kWeights:
      return "WeightMismatchError";
    case ErrorCode::kInput:
      return "ShapeError";
    case ErrorCode::kDevice:
    case ErrorCode::kBusy:
      return "DeviceError";
    case ErrorCode::kLimit:
    case ErrorCode::kData:
    case ErrorCode::kIo:
      break;
  }
  return "Error";
}

py::object python_error(const Error& error) {
  const py::object type = py::module_::import("npusim.errors").attr(class_of(error.code()));
  // Messages name files and variables, whose bytes need not be UTF-8.
  const std::string_view text = error.what();
  const auto message = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  if (!message) throw py::error_already_set();
  return type(message);
}

void set_python_error(const Error& error) {
  const py::object made = python_error(error);
  PyErr_SetObject(py::type::handle_of(made).ptr(), made.ptr());
}

}  // namespace npusim::python

PYBIND11_MODULE(_runtime, module) {
  using namespace npusim::python;
  module.doc() = "The C++ runtime of npusim.";
  module.attr("__version__") = NPUSIM_VERSION;
  module.attr("__interface__") = NPUSIM_INTERFACE;
  py::register_local_exception_translator([](std::exception_ptr pending) {
    try {
      std::rethrow_exception(pending);
    } catch (const npusim::Error& error) {
      set_python_error(error);
    }
  });
  bind_device(module);
  bind_buffer(module);
  bind_program(module);
  bind_state(module);
  bind_executor(module);
  bind_session(module);
  bind_sampler(module);
  bind_simulate(module);
  bind_language_model(module);
  bind_engine(module);
}
