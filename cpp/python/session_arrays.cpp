// Calls with contiguous NumPy arrays, and with what lends memory by Python's buffer protocol.
#include <pybind11/numpy.h>

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "cpp/python/session.h"
#include "cpp/python/unlocked.h"
#include "cpp/runtime/turn.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

constexpr const char* kBusy =
    "this session is running on another thread; give each thread a session of its own (they can "
    "share weights), or take turns";

constexpr int kPlain =
    py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;

// Whether an object has the buffer protocol, and no other way to show its elements.
bool lends_plainly(PyObject* object) {
  if (PyMemoryView_Check(object)) return true;
  PyTypeObject* type = Py_TYPE(object);
  if (PyObject_CheckBuffer(object) == 0) return false;
  if (PyType_IsSubtype(type, py::detail::npy_api::get().PyArray_Type_) != 0) return false;
  return PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), "__dlpack__") == 0;
}

// Whether elements of a buffer, as the module struct writes them, are of the dtype.
bool is_format(const Py_buffer& view, DType dtype) {
  const char* format = view.format;
  constexpr bool kLittle = std::endian::native == std::endian::little;
  if (*format == '@' || *format == '=' || *format == (kLittle ? '<' : '>')) ++format;
  if (format[0] == '\0' || format[1] != '\0') return false;
  const auto bytes = static_cast<size_t>(view.itemsize);
  const auto is_one_of = [&](std::string_view letters) {
    return letters.find(*format) != std::string_view::npos &&
           bytes == static_cast<size_t>(dtype_size(dtype));
  };
  switch (dtype) {
    case DType::kFloat16:
      return is_one_of("e");
    case DType::kFloat32:
      return is_one_of("f");
    case DType::kFloat64:
      return is_one_of("d");
    case DType::kInt64:
    case DType::kInt32:
    case DType::kInt16:
    case DType::kInt8:
      return is_one_of("bhilqn");
    case DType::kUint8:
      return is_one_of("B");
    case DType::kBool:
      return is_one_of("?");
    default:
      return false;
  }
}

// Whether every argument is an array or buffer of a port's dtype and shape; fills the bindings.
bool bind(PyObject* args, const std::vector<Port>& ports, Bindings& bindings, LentBuffers& lent) {
  const auto& numpy = py::detail::npy_api::get();
  lent.give_back();
  for (size_t i = 0; i < ports.size(); ++i) {
    PyObject* arg = PyTuple_GET_ITEM(args, static_cast<py::ssize_t>(i));
    const Port& port = ports[i];
    if (Py_TYPE(arg) != numpy.PyArray_Type_) {
      if (lent.bind(arg, port, bindings[i])) continue;
      return false;
    }
    const auto* array = py::detail::array_proxy(arg);
    // NumPy has one descriptor for each native dtype, so comparing pointers is enough.
    const bool fits = array->descr == port.descr.ptr() &&
                      static_cast<size_t>(array->nd) == port.shape.size() &&
                      std::equal(port.shape.begin(), port.shape.end(), array->dimensions);
    if (!fits) return false;
    if ((array->flags & kPlain) != kPlain) {
      if (lent.bind_copy(arg, port, bindings[i])) continue;
      return false;
    }
    bindings[i] = {0, reinterpret_cast<uintptr_t>(array->data), port.bytes};
  }
  return true;
}

// An array that was bound, as the bytes it is.
std::span<std::byte> host_bytes(const Binding& array) {
  return {address_of(array), static_cast<size_t>(array.bytes)};
}

}  // namespace

void LentBuffers::give_back() {
  while (count_ > 0) PyBuffer_Release(&views_[--count_]);
  while (copied_ > 0) Py_DECREF(copies_[--copied_]);
}

bool LentBuffers::bind(PyObject* object, const Port& port, Binding& binding) {
  if (!lends_plainly(object)) return false;
  Py_buffer& view = views_[count_];
  if (PyObject_GetBuffer(object, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  ++count_;
  const bool fits = view.len == port.bytes && static_cast<size_t>(view.ndim) == port.shape.size() &&
                    std::equal(port.shape.begin(), port.shape.end(), view.shape) &&
                    is_format(view, port.spec->dtype) &&
                    reinterpret_cast<uintptr_t>(view.buf) % static_cast<size_t>(view.itemsize) == 0;
  if (fits) binding = {0, reinterpret_cast<uintptr_t>(view.buf), port.bytes};
  return fits;
}

bool LentBuffers::bind_copy(PyObject* array, const Port& port, Binding& binding) {
  const auto& numpy = py::detail::npy_api::get();
  PyObject* copy = numpy.PyArray_FromAny_(array, port.descr.inc_ref().ptr(), 0, 0, kPlain, nullptr);
  if (copy == nullptr) {
    PyErr_Clear();
    return false;
  }
  copies_[copied_++] = copy;
  const auto address = reinterpret_cast<uintptr_t>(py::detail::array_proxy(copy)->data);
  binding = {0, address, port.bytes};
  return true;
}

FormPtr Session::bind_arrays(PyObject* args, Bindings& bindings, LentBuffers& lent) {
  if (!fast_ && takes_bfloat16_ && !bfloat16_) know_dtypes();
  if (!fast_ || static_cast<size_t>(PyTuple_GET_SIZE(args)) != whole_->inputs.size()) {
    return nullptr;
  }
  const auto fits = [&](const Form& form) { return bind(args, form.inputs, bindings, lent); };
  if (FormPtr form = find(fits)) return form;
  if (!symbolic_) return nullptr;
  const auto shapes = array_shapes(args);
  return shapes && learn(*shapes) && fits(*forms_.front()) ? forms_.front() : nullptr;
}

// Nothing when they are not arrays of the dtypes that the method takes.
std::optional<std::vector<Shape>> Session::array_shapes(PyObject* args) const {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < whole_->inputs.size(); ++i) {
    PyObject* arg = PyTuple_GET_ITEM(args, static_cast<py::ssize_t>(i));
    if (Py_TYPE(arg) != py::detail::npy_api::get().PyArray_Type_) return std::nullopt;
    const auto* array = py::detail::array_proxy(arg);
    if (array->descr != whole_->inputs[i].descr.ptr()) return std::nullopt;
    shapes.emplace_back(array->dimensions, array->dimensions + array->nd);
  }
  return shapes;
}

PyObject* Session::make_outputs(const Form& form, Bindings& bindings) const {
  const auto& numpy = py::detail::npy_api::get();
  PyObject* tuple = PyTuple_New(static_cast<py::ssize_t>(form.outputs.size()));
  for (size_t i = 0; tuple != nullptr && i < form.outputs.size(); ++i) {
    const Port& port = form.outputs[i];
    PyObject* array = numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, port.descr.inc_ref().ptr(),
                                                  static_cast<int>(port.shape.size()),
                                                  port.shape.data(), nullptr, nullptr, 0, nullptr);
    if (array == nullptr) {
      Py_DECREF(tuple);
      return nullptr;
    }
    PyTuple_SET_ITEM(tuple, static_cast<py::ssize_t>(i), array);
    const auto address = reinterpret_cast<uintptr_t>(py::detail::array_proxy(array)->data);
    bindings[i] = {0, address, port.bytes};
  }
  return tuple;
}

// Where the device has an array for a call: the array itself, where the device can use it as it
// lies; else memory that the session keeps, which serves all sizes.
Session::Place Session::place(const Binding& array, const Port& whole,
                              std::shared_ptr<Memory>& kept) const {
  Device& device = executor_->device();
  if (auto shown = device.import_host(host_bytes(array), nullptr)) return {shown, true};
  if (kept == nullptr) kept = device.allocate(whole.bytes);
  return {kept, false};
}

// The bindings that are given are the arrays of the host.
void Session::run_with_copies(const Form& form, const Bindings& inputs,
                              const Bindings& outputs) const {
  const Turn turn(copying_, kBusy);
  Device& device = executor_->device();
  const size_t taken = form.inputs.size(), made = form.outputs.size();
  device_inputs_.resize(taken);
  device_outputs_.resize(made);
  std::array<Place, kFastPorts> given, results;  // an array is shown until its work has ended
  Bindings in, out;
  for (size_t i = 0; i < taken; ++i) {
    given[i] = place(inputs[i], whole_->inputs[i], device_inputs_[i]);
    in[i] = given[i].memory->range().part(0, form.inputs[i].bytes);
    if (!given[i].in_place) device.upload(*given[i].memory, 0, host_bytes(inputs[i]));
  }
  for (size_t i = 0; i < made; ++i) {
    results[i] = place(outputs[i], whole_->outputs[i], device_outputs_[i]);
    out[i] = results[i].memory->range().part(0, form.outputs[i].bytes);
  }
  executor_->enqueue(method_, {in.data(), taken}, {out.data(), made}, weights_.get(), nullptr, 0,
                     form.sizes);
  bool settled = false;
  for (size_t i = 0; i < made; ++i) {
    if (!results[i].in_place) {
      device.download(host_bytes(outputs[i]), *results[i].memory, 0);
    } else if (!std::exchange(settled, true)) {
      executor_->settle(method_);
    }
  }
  if (!settled && executor_->can_fail(method_)) executor_->settle(method_);
}

bool Session::run(const Form& form, const Bindings& inputs, const Bindings& outputs) const {
  return run_unlocked([&] {
    if (uses_host_memory_) {
      executor_->run(method_, {inputs.data(), form.inputs.size()},
                     {outputs.data(), form.outputs.size()}, weights_.get(), nullptr, form.sizes);
    } else {
      run_with_copies(form, inputs, outputs);
    }
  });
}

}  // namespace npusim::python
