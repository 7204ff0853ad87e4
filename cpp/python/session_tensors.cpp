// Calls with tensors that lie on the device: of libraries with DLPack's C interface, and
// DeviceBuffers.
#include <pybind11/stl.h>

#include "cpp/python/buffer.h"
#include "cpp/python/session.h"
#include "cpp/python/unlocked.h"

namespace py = pybind11;

namespace npusim::python {

bool Session::bind_tensors(PyObject* self, PyObject* args, Bindings& bindings) {
  if (!dense_ || static_cast<size_t>(PyTuple_GET_SIZE(args)) != inputs_.size()) return false;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    PyObject* arg = PyTuple_GET_ITEM(args, static_cast<py::ssize_t>(i));
    if (Py_TYPE(arg) != met_ && (i > 0 || !meet(self, Py_TYPE(arg)))) return false;
    if (!bind_one(arg, inputs_[i], bindings[i])) return false;
  }
  return !inputs_.empty();
}

// Asks the subclass for callables without arguments that make the outputs as tensors of a type.
bool Session::meet(PyObject* self, PyTypeObject* type) {
  const std::optional<Exchange> exchange = Exchange::of(type);
  auto* buffer = reinterpret_cast<PyTypeObject*>(py::type::of<DeviceBuffer>().ptr());
  if (!exchange && PyType_IsSubtype(type, buffer) == 0) return false;
  try {
    const py::object makers =
        py::handle(self).attr("_tensor_makers")(py::handle(reinterpret_cast<PyObject*>(type)));
    if (makers.is_none()) return false;
    makers_ = py::cast<std::vector<py::object>>(makers);
  } catch (const py::error_already_set&) {
    return false;  // the long way has the words for it
  }
  exchange_ = exchange;
  kept_ = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(type));
  met_ = makers_.size() == outputs_.size() ? type : nullptr;
  return met_ != nullptr;
}

bool Session::bind_one(PyObject* tensor, const Port& port, Binding& binding) const {
  if (exchange_) return exchange_->bind(tensor, port.tensor, here_, alignment_, binding);
  const auto& buffer = py::cast<const DeviceBuffer&>(py::handle(tensor));
  // Memory of others takes the long way, which waits until the device is done with it.
  const bool fits = !buffer.borrowed && buffer.device.get() == &executor_->device() &&
                    buffer.dtype == port.spec->dtype && buffer.shape == port.spec->shape &&
                    buffer.alloc_shape == port.spec->alloc_shape;
  if (fits) binding = buffer.binding();
  return fits;
}

PyObject* Session::make_tensors(Bindings& bindings) const {
  PyObject* tuple = PyTuple_New(static_cast<py::ssize_t>(outputs_.size()));
  for (size_t i = 0; tuple != nullptr && i < outputs_.size(); ++i) {
    PyObject* tensor = PyObject_CallNoArgs(makers_[i].ptr());
    if (tensor != nullptr) PyTuple_SET_ITEM(tuple, static_cast<py::ssize_t>(i), tensor);
    if (tensor != nullptr && bind_one(tensor, outputs_[i], bindings[i])) continue;
    if (tensor != nullptr) PyErr_SetString(PyExc_RuntimeError, "an output cannot be written");
    Py_CLEAR(tuple);
  }
  return tuple;
}

bool Session::enqueue(const Bindings& inputs, const Bindings& outputs) const {
  const bool has_queue = !executor_->device().shares_host_memory();
  const std::optional<uintptr_t> queue = has_queue && exchange_ ? exchange_->queue(here_) : 0;
  if (!queue) {
    PyErr_SetString(PyExc_RuntimeError, "the tensors' library does not tell its current stream");
    return false;
  }
  return run_unlocked([&] {
    executor_->enqueue(method_, {inputs.data(), inputs_.size()}, {outputs.data(), outputs_.size()},
                       weights_.get(), nullptr, *queue);
    if (has_queue && executor_->can_fail(method_)) executor_->settle(method_);
  });
}

}  // namespace npusim::python
