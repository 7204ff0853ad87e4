// Calls with tensors that lie on the device: of libraries with DLPack's C interface, and
// DeviceBuffers.
#include <pybind11/stl.h>

#include "cpp/python/buffer.h"
#include "cpp/python/session.h"
#include "cpp/python/unlocked.h"

namespace py = pybind11;

namespace npusim::python {

FormPtr Session::bind_tensors(PyObject* self, PyObject* args, Bindings& bindings) {
  const size_t count = whole_->inputs.size();
  if (!dense_ || count == 0 || static_cast<size_t>(PyTuple_GET_SIZE(args)) != count) return nullptr;
  const auto arg = [&](size_t i) { return PyTuple_GET_ITEM(args, static_cast<py::ssize_t>(i)); };
  if (Py_TYPE(arg(0)) != met_ && !meet(Py_TYPE(arg(0)))) return nullptr;
  for (size_t i = 1; i < count; ++i) {
    if (Py_TYPE(arg(i)) != met_) return nullptr;
  }
  const auto fits = [&](const Form& form) {
    for (size_t i = 0; i < count; ++i) {
      if (!bind_one(arg(i), form.inputs[i], bindings[i])) return false;
    }
    return true;
  };
  FormPtr form = find(fits);
  if (form == nullptr && symbolic_) {
    const auto shapes = tensor_shapes(args);
    if (shapes && learn(*shapes) && fits(*forms_.front())) form = forms_.front();
  }
  if (form == nullptr || (form->made_for != met_ && !ask_makers(self, *form))) return nullptr;
  return form;
}

// Nothing when they do not lie on the device in the dtypes that the method takes.
std::optional<std::vector<Shape>> Session::tensor_shapes(PyObject* args) const {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < whole_->inputs.size(); ++i) {
    PyObject* arg = PyTuple_GET_ITEM(args, static_cast<py::ssize_t>(i));
    const Port& port = whole_->inputs[i];
    std::optional<Shape> shape;
    if (exchange_) {
      shape = exchange_->shape(arg, port.tensor.dtype, here_);
    } else {
      const auto& buffer = py::cast<const DeviceBuffer&>(py::handle(arg));
      const bool here = buffer.device.get() == &executor_->device();
      if (here && buffer.dtype == port.spec->dtype) shape = buffer.shape;
    }
    if (!shape) return std::nullopt;
    shapes.push_back(std::move(*shape));
  }
  return shapes;
}

// Whether tensors of a type can be used where they lie; keeps the type.
bool Session::meet(PyTypeObject* type) {
  const std::optional<Exchange> exchange = Exchange::of(type);
  auto* buffer = reinterpret_cast<PyTypeObject*>(py::type::of<DeviceBuffer>().ptr());
  if (!exchange && PyType_IsSubtype(type, buffer) == 0) return false;
  exchange_ = exchange;
  kept_ = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(type));
  met_ = type;
  return true;
}

// Asks the subclass for callables without arguments that make the outputs as tensors of the type
// met last.
bool Session::ask_makers(PyObject* self, Form& form) const {
  try {
    const py::object makers = py::handle(self).attr("_tensor_makers")(kept_, form.sizes);
    if (makers.is_none()) return false;
    form.makers = py::cast<std::vector<py::object>>(makers);
  } catch (const py::error_already_set&) {
    return false;  // the long way has the words for it
  }
  if (form.makers.size() != form.outputs.size()) return false;
  form.made_for = met_;
  return true;
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

PyObject* Session::make_tensors(const Form& form, Bindings& bindings) const {
  PyObject* tuple = PyTuple_New(static_cast<py::ssize_t>(form.outputs.size()));
  for (size_t i = 0; tuple != nullptr && i < form.outputs.size(); ++i) {
    PyObject* tensor = PyObject_CallNoArgs(form.makers[i].ptr());
    if (tensor != nullptr) PyTuple_SET_ITEM(tuple, static_cast<py::ssize_t>(i), tensor);
    if (tensor != nullptr && bind_one(tensor, form.outputs[i], bindings[i])) continue;
    if (tensor != nullptr) PyErr_SetString(PyExc_RuntimeError, "an output cannot be written");
    Py_CLEAR(tuple);
  }
  return tuple;
}

bool Session::enqueue(const Form& form, const Bindings& inputs, const Bindings& outputs) const {
  const bool has_queue = !executor_->device().shares_host_memory();
  const std::optional<uintptr_t> queue = has_queue && exchange_ ? exchange_->queue(here_) : 0;
  if (!queue) {
    PyErr_SetString(PyExc_RuntimeError, "the tensors' library does not tell its current stream");
    return false;
  }
  return run_unlocked([&] {
    executor_->enqueue(method_, {inputs.data(), form.inputs.size()},
                       {outputs.data(), form.outputs.size()}, weights_.get(), nullptr, *queue,
                       form.sizes);
    if (has_queue && executor_->can_fail(method_)) executor_->settle(method_);
  });
}

}  // namespace npusim::python
