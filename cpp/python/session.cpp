// A call goes straight from the type's tp_call to the executor. What is common (contiguous NumPy
// arrays of exactly the right dtype and shape, all given in order) is bound by pointer, and the
// outputs are fresh NumPy arrays that the run writes into; a device with memory of its own gets
// buffers that the session keeps, and the arrays are copied there and back. Tensors of libraries
// with DLPack's C interface that lie on the device are bound by pointer too, outputs are such
// tensors, and the work goes to their library's queue; so are DeviceBuffers, in the device's own
// queue. Everything else goes to the Python method `_call_slow(args, kwargs)` of the subclass,
// which also words the errors. session_arrays.cpp and session_tensors.cpp have the two common ways.
#include "cpp/python/session.h"

#include <pybind11/numpy.h>

#include <algorithm>

#include "cpp/python/bindings.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

py::object numpy_dtype(DType dtype) {
  if (dtype == DType::kBfloat16) return {};
  return py::dtype(std::string(dtype_name(dtype)));
}

std::vector<Port> ports(const Program& program, const std::vector<TensorSpec>& specs) {
  std::vector<Port> out;
  for (const TensorSpec& spec : specs) {
    Port& port = out.emplace_back();
    if (spec.shape == spec.alloc_shape) port.descr = numpy_dtype(spec.dtype);
    port.shape.assign(spec.shape.begin(), spec.shape.end());
    port.bytes = static_cast<size_t>(program.buffers[spec.buffer].bytes);
    port.tensor = {dl_type(spec.dtype), spec.shape, port.bytes};
    port.spec = &spec;
  }
  return out;
}

bool all_fast(const std::vector<Port>& ports) {
  return ports.size() <= kFastPorts &&
         std::all_of(ports.begin(), ports.end(), [](const Port& port) { return !!port.descr; });
}

bool all_dense(const std::vector<TensorSpec>& specs) {
  return specs.size() <= kFastPorts && std::all_of(specs.begin(), specs.end(), [](const auto& s) {
           return s.shape == s.alloc_shape;
         });
}

}  // namespace

Session::Session(std::shared_ptr<Executor> executor, std::shared_ptr<Weights> weights,
                 size_t method)
    : executor_(std::move(executor)), weights_(std::move(weights)), method_(method) {
  const Program& program = executor_->program();
  if (method_ >= program.methods.size()) throw py::index_error("no such method");
  inputs_ = ports(program, program.methods[method_].inputs);
  outputs_ = ports(program, program.methods[method_].outputs);
  fast_ = all_fast(inputs_) && all_fast(outputs_);
  const Device& device = executor_->device();
  const bool known = device.shares_host_memory() || device.name() == "cuda";
  dense_ = known && all_dense(program.methods[method_].inputs) &&
           all_dense(program.methods[method_].outputs);
  if (known) here_ = dl_device(device);
  constexpr size_t kVector = 16;  // what kernels of a GPU ask of an address
  alignment_ = device.shares_host_memory() ? sizeof(double) : kVector;
}

namespace {

PyObject* call_slow(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* given = kwargs != nullptr ? Py_NewRef(kwargs) : PyDict_New();
  if (given == nullptr) return nullptr;
  PyObject* result = nullptr;
  if (PyObject* method = PyObject_GetAttrString(self, "_call_slow")) {
    result = PyObject_CallFunctionObjArgs(method, args, given, nullptr);
    Py_DECREF(method);
  }
  Py_DECREF(given);
  return result;
}

// tp_call of the Session type.
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const auto* instance = reinterpret_cast<py::detail::instance*>(self);
  auto* session = static_cast<Session*>(instance->simple_value_holder[0]);
  if (session == nullptr) {
    PyErr_SetString(PyExc_TypeError, "the session's __init__ was not called");
    return nullptr;
  }
  Bindings inputs, outputs;
  const bool positional = kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0;
  if (positional && session->bind_inputs(args, inputs)) {
    PyObject* results = session->make_outputs(outputs);
    if (results != nullptr && !session->run(inputs, outputs)) Py_CLEAR(results);
    return results;
  }
  if (positional && session->bind_tensors(self, args, inputs)) {
    PyObject* results = session->make_tensors(outputs);
    if (results != nullptr && !session->enqueue(inputs, outputs)) Py_CLEAR(results);
    return results;
  }
  return call_slow(self, args, kwargs);
}

}  // namespace

void bind_session(py::module_& module) {
  const auto callable = [](PyHeapTypeObject* type) { type->ht_type.tp_call = call; };
  py::class_<Session>(module, "Session", py::custom_type_setup(callable))
      .def(py::init<std::shared_ptr<Executor>, std::shared_ptr<Weights>, size_t>(),
           py::arg("executor"), py::arg("weights"), py::arg("method"));
}

}  // namespace npusim::python
