// Calls with tensors that lie on the device: of libraries with DLPack's C interface, and
// DeviceBuffers.
#include <pybind11/stl.h>

#include "cpp/python/bindings.h"
#include "cpp/python/buffer.h"
#include "cpp/python/session.h"
#include "cpp/python/unlocked.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

constexpr DlDevice kHostOfDlpack{1, 0};

// Whether the bits of a tensor are not its values, or its library does not say.
bool is_lazy(const Library& library, PyObject* tensor) {
  if (!library.is_lazy) return false;
  PyObject* answer = PyObject_CallOneArg(library.is_lazy.ptr(), tensor);
  const bool plain = answer == Py_False;
  Py_XDECREF(answer);
  PyErr_Clear();
  return !plain;
}

// Whether a tensor made for the library is one like its own: in no mode that would make others.
bool takes_tensors(const Library& library) {
  if (!library.count_modes) return false;
  PyObject* answer = PyObject_CallNoArgs(library.count_modes.ptr());
  const bool none = answer != nullptr && PyLong_Check(answer) && PyObject_IsTrue(answer) == 0;
  Py_XDECREF(answer);
  PyErr_Clear();
  return none;
}

}  // namespace

std::optional<TensorCall> Session::bind_tensors(PyObject* self, PyObject* args,
                                                Bindings& bindings) {
  const size_t count = whole_->inputs.size();
  if (!dense_ || count == 0 || static_cast<size_t>(PyTuple_GET_SIZE(args)) != count) return {};
  const auto arg = [&](size_t i) { return PyTuple_GET_ITEM(args, static_cast<py::ssize_t>(i)); };
  const LibraryPtr library = meet(self, Py_TYPE(arg(0)));
  if (library == nullptr) return {};
  for (size_t i = 1; i < count; ++i) {
    if (Py_TYPE(arg(i)) != Py_TYPE(arg(0))) return {};
  }
  const auto fits = [&](const Form& form) {
    for (size_t i = 0; i < count; ++i) {
      if (!bind_one(*library, arg(i), form.inputs[i], bindings[i])) return false;
    }
    return true;
  };
  FormPtr form = find(fits);
  if (form == nullptr && symbolic_) {
    const auto shapes = tensor_shapes(*library, args);
    if (shapes && learn(*shapes) && fits(*forms_.front())) form = forms_.front();
  }
  for (size_t i = 0; form != nullptr && i < count; ++i) {
    if (is_lazy(*library, arg(i))) form = nullptr;
  }
  if (form == nullptr) return {};
  MakersPtr makers = form->makers;
  if (makers == nullptr || makers->library != library) {
    makers = ask_makers(self, library, *form);
    if (makers == nullptr) return {};
    form->makers = makers;
  }
  return TensorCall{std::move(form), std::move(makers)};
}

// Nothing when they do not lie on the device in the dtypes that the method takes.
std::optional<std::vector<Shape>> Session::tensor_shapes(const Library& library,
                                                         PyObject* args) const {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < whole_->inputs.size(); ++i) {
    PyObject* arg = PyTuple_GET_ITEM(args, static_cast<py::ssize_t>(i));
    const Port& port = whole_->inputs[i];
    std::optional<Shape> shape;
    if (library.exchange) {
      shape = library.exchange->shape(arg, port.tensor.dtype, here_.device);
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

// The library of a type whose tensors can be used where they lie; null for another one.
LibraryPtr Session::meet(PyObject* self, PyTypeObject* type) {
  auto* object = reinterpret_cast<PyObject*>(type);
  if (met_ != nullptr && met_->type.ptr() == object) return met_;
  const std::optional<Exchange> exchange = Exchange::of(type);
  auto* buffer = reinterpret_cast<PyTypeObject*>(py::type::of<DeviceBuffer>().ptr());
  if (!exchange && PyType_IsSubtype(type, buffer) == 0) return nullptr;
  try {
    const auto kept = py::reinterpret_borrow<py::object>(object);
    py::object is_lazy = py::handle(self).attr("_is_lazy")(kept);
    if (is_lazy.is_none()) is_lazy = py::object();
    const bool takes = here_.device == kHostOfDlpack && exchange && exchange->takes();
    py::object count_modes = takes ? py::handle(self).attr("_count_modes")(kept) : py::none();
    if (count_modes.is_none()) count_modes = py::object();
    const LibraryPtr library = std::make_shared<const Library>(
        Library{kept, exchange, std::move(is_lazy), std::move(count_modes)});
    met_ = library;
    return library;
  } catch (const py::error_already_set&) {
    return nullptr;  // the long way has the words for it
  }
}

// Asks the subclass for what makes the outputs.
MakersPtr Session::ask_makers(PyObject* self, const LibraryPtr& library, const Form& form) const {
  try {
    const py::object makers = py::handle(self).attr("_tensor_makers")(library->type, form.sizes);
    if (makers.is_none()) return nullptr;
    auto outputs = py::cast<std::vector<py::object>>(makers);
    if (outputs.size() != form.outputs.size()) return nullptr;
    return std::make_shared<const Makers>(Makers{library, std::move(outputs)});
  } catch (const std::exception&) {
    return nullptr;  // the long way has the words for it
  }
}

bool Session::bind_one(const Library& library, PyObject* tensor, const Port& port,
                       Binding& binding) const {
  if (library.exchange) return library.exchange->bind(tensor, port.tensor, here_, binding);
  const auto& buffer = py::cast<const DeviceBuffer&>(py::handle(tensor));
  // Memory of others takes the long way, which waits until the device is done with it.
  const bool fits = (!buffer.borrowed || synchronous_) &&
                    buffer.device.get() == &executor_->device() &&
                    buffer.dtype == port.spec->dtype && buffer.shape == port.spec->shape &&
                    buffer.alloc_shape == port.spec->alloc_shape;
  if (fits) binding = buffer.binding();
  return fits;
}

// Null with a Python error set.
PyObject* Session::make_tensor(const TensorCall& call, size_t index, Binding& binding) const {
  const Port& port = call.form->outputs[index];
  const Library& library = *call.makers->library;
  if (takes_tensors(library)) return library.exchange->make(port.tensor, binding);
  PyObject* tensor = PyObject_CallNoArgs(call.makers->outputs[index].ptr());
  if (tensor == nullptr) return nullptr;
  // A mode of PyTorch makes others.
  const bool known = Py_TYPE(tensor) == reinterpret_cast<PyTypeObject*>(library.type.ptr());
  if (known && bind_one(library, tensor, port, binding)) return tensor;
  set_python_error(
      Error(ErrorCode::kInput, "the tensor that its library made for output " +
                                   std::string(port.spec->name) +
                                   " has no memory to write to; is a mode such as FakeTensorMode "
                                   "active? Call the session outside of it."));
  Py_DECREF(tensor);
  return nullptr;
}

PyObject* Session::make_tensors(const TensorCall& call, Bindings& bindings) const {
  const Form& form = *call.form;
  PyObject* tuple = PyTuple_New(static_cast<py::ssize_t>(form.outputs.size()));
  for (size_t i = 0; tuple != nullptr && i < form.outputs.size(); ++i) {
    PyObject* tensor = make_tensor(call, i, bindings[i]);
    if (tensor == nullptr) {
      Py_CLEAR(tuple);
    } else {
      PyTuple_SET_ITEM(tuple, static_cast<py::ssize_t>(i), tensor);
    }
  }
  return tuple;
}

bool Session::enqueue(const TensorCall& call, const Bindings& inputs,
                      const Bindings& outputs) const {
  const Form& form = *call.form;
  const std::optional<Exchange>& exchange = call.makers->library->exchange;
  const bool has_queue = streams_ != nullptr && exchange;
  const std::optional<uintptr_t> queue = has_queue ? exchange->queue(here_.device) : 0;
  if (!queue) {
    PyErr_SetString(PyExc_RuntimeError, "the tensors' library does not tell its current stream");
    return false;
  }
  return run_unlocked([&] {
    executor_->enqueue(method_, {inputs.data(), form.inputs.size()},
                       {outputs.data(), form.outputs.size()}, weights_.get(), nullptr, *queue,
                       form.sizes);
    // Others may use their memory anew as soon as this returns, unless it is in their queue.
    const bool waits = (exchange && !has_queue) || executor_->can_fail(method_);
    if (!synchronous_ && waits) executor_->settle(method_);
  });
}

}  // namespace npusim::python
