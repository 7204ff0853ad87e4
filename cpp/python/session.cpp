// Session: calling a method as if it were a Python function, at the cost of a few hundred
// nanoseconds.
//
// The call goes straight from the type's tp_call to the executor. What is common (contiguous NumPy
// arrays of exactly the right dtype and shape, all given in order) is bound by pointer, and the
// outputs are fresh NumPy arrays that the run writes into; a device with memory of its own gets
// buffers that the session keeps, and the arrays are copied there and back. Tensors of libraries
// with DLPack's C interface that lie on the device are bound by pointer too, outputs are such
// tensors, and the work goes to their library's queue; so are DeviceBuffers, in the device's own
// queue. Everything else goes to the Python method
// `_call_slow(args, kwargs)` of the subclass, which also words the errors.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "cpp/python/bindings.h"
#include "cpp/python/buffer.h"
#include "cpp/python/exchange.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/turn.h"
#include "cpp/runtime/weights.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

// One input or output in NumPy's terms, and in DLPack's.
struct Port {
  py::object descr;  // null: NumPy lacks the dtype, or the buffer is padded
  std::vector<py::ssize_t> shape;
  size_t bytes;
  ExchangePort tensor;
  const TensorSpec* spec;  // of the program
};

constexpr const char* kBusy =
    "this session is running on another thread; give each thread a session of its own (they can "
    "share weights), or take turns";

constexpr size_t kFastPorts = 16;  // methods with more inputs or outputs take the slow path

// Where the arrays of one call lie; on the stack, because calls may overlap.
using Bindings = std::array<Binding, kFastPorts>;

class Session {
 public:
  Session(std::shared_ptr<Executor> executor, std::shared_ptr<Weights> weights, size_t method);

  // Whether every argument can be bound as it is; fills `bindings`.
  bool bind_inputs(PyObject* args, Bindings& bindings) const;
  // A new tuple of uninitialised arrays; null with a Python error set.
  PyObject* make_outputs(Bindings& bindings) const;
  // False with a Python error set.
  bool run(const Bindings& inputs, const Bindings& outputs) const;

  // Whether every argument is a tensor of one library that can be bound as it is. `self` is the
  // session's Python object.
  bool bind_tensors(PyObject* self, PyObject* args, Bindings& bindings);
  // Behind bind_tensors: a new tuple of the library's tensors; null with a Python error set.
  PyObject* make_tensors(Bindings& bindings) const;
  // Puts the work into the library's queue; waits only if the method can fail. False with a Python
  // error set.
  bool enqueue(const Bindings& inputs, const Bindings& outputs) const;

 private:
  using Memories = std::vector<std::shared_ptr<Memory>>;
  Memories allocate(const std::vector<Port>& ports) const;
  void run_with_copies(const Bindings& inputs, const Bindings& outputs) const;
  bool meet(PyObject* self, PyTypeObject* type);
  bool bind_one(PyObject* tensor, const Port& port, Binding& binding) const;
  template <typename Action>
  static bool unlocked(const Action& action);

  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Weights> weights_;
  size_t method_;
  std::vector<Port> inputs_, outputs_;
  bool fast_;
  bool dense_;  // no input or output is padded
  DlDevice here_ = {};
  size_t alignment_ = 1;  // of a tensor's address
  // The library met last: its tensor type, kept, and what makes each output. There is no exchange
  // for DeviceBuffers.
  PyTypeObject* met_ = nullptr;
  py::object kept_;
  std::optional<Exchange> exchange_;
  std::vector<py::object> makers_;
  // For arrays of the host on a device that does not share its memory; made by the first call.
  mutable Memories device_inputs_, device_outputs_;
  mutable std::atomic<bool> copying_{false};
};

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

bool Session::bind_inputs(PyObject* args, Bindings& bindings) const {
  constexpr int kNeeded =
      py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  const auto& numpy = py::detail::npy_api::get();
  if (!fast_ || static_cast<size_t>(PyTuple_GET_SIZE(args)) != inputs_.size()) return false;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    PyObject* arg = PyTuple_GET_ITEM(args, static_cast<py::ssize_t>(i));
    if (Py_TYPE(arg) != numpy.PyArray_Type_) return false;
    const auto* array = py::detail::array_proxy(arg);
    const Port& port = inputs_[i];
    // NumPy has one descriptor for each native dtype, so comparing pointers is enough.
    const bool fits = array->descr == port.descr.ptr() && (array->flags & kNeeded) == kNeeded &&
                      static_cast<size_t>(array->nd) == port.shape.size() &&
                      std::equal(port.shape.begin(), port.shape.end(), array->dimensions);
    if (!fits) return false;
    bindings[i] = {reinterpret_cast<std::byte*>(array->data), port.bytes};
  }
  return true;
}

PyObject* Session::make_outputs(Bindings& bindings) const {
  const auto& numpy = py::detail::npy_api::get();
  PyObject* tuple = PyTuple_New(static_cast<py::ssize_t>(outputs_.size()));
  for (size_t i = 0; tuple != nullptr && i < outputs_.size(); ++i) {
    const Port& port = outputs_[i];
    PyObject* array = numpy.PyArray_NewFromDescr_(numpy.PyArray_Type_, port.descr.inc_ref().ptr(),
                                                  static_cast<int>(port.shape.size()),
                                                  port.shape.data(), nullptr, nullptr, 0, nullptr);
    if (array == nullptr) {
      Py_DECREF(tuple);
      return nullptr;
    }
    PyTuple_SET_ITEM(tuple, static_cast<py::ssize_t>(i), array);
    bindings[i] = {reinterpret_cast<std::byte*>(py::detail::array_proxy(array)->data), port.bytes};
  }
  return tuple;
}

Session::Memories Session::allocate(const std::vector<Port>& ports) const {
  Memories memories;
  for (const Port& port : ports) {
    memories.push_back(executor_->device().allocate(static_cast<int64_t>(port.bytes)));
  }
  return memories;
}

void Session::run_with_copies(const Bindings& inputs, const Bindings& outputs) const {
  const Turn turn(copying_, kBusy);
  Device& device = executor_->device();
  if (device_inputs_.size() != inputs_.size()) device_inputs_ = allocate(inputs_);
  if (device_outputs_.size() != outputs_.size()) device_outputs_ = allocate(outputs_);
  Bindings in, out;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    in[i] = {device_inputs_[i]->data(), inputs_[i].bytes};
    device.upload(*device_inputs_[i], 0, inputs[i]);
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    out[i] = {device_outputs_[i]->data(), outputs_[i].bytes};
  }
  executor_->enqueue(method_, {in.data(), inputs_.size()}, {out.data(), outputs_.size()},
                     weights_.get(), nullptr, 0);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    device.download(outputs[i], *device_outputs_[i], 0);
  }
  if (executor_->can_fail(method_)) executor_->settle(method_);
}

bool Session::run(const Bindings& inputs, const Bindings& outputs) const {
  return unlocked([&] {
    if (executor_->device().shares_host_memory()) {
      executor_->run(method_, {inputs.data(), inputs_.size()}, {outputs.data(), outputs_.size()},
                     weights_.get());
    } else {
      run_with_copies(inputs, outputs);
    }
  });
}

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
  return unlocked([&] {
    executor_->enqueue(method_, {inputs.data(), inputs_.size()}, {outputs.data(), outputs_.size()},
                       weights_.get(), nullptr, *queue);
    if (has_queue && executor_->can_fail(method_)) executor_->settle(method_);
  });
}

// Without the GIL; what is thrown becomes a Python error.
template <typename Action>
bool Session::unlocked(const Action& action) {
  PyThreadState* state = PyEval_SaveThread();
  try {
    action();
  } catch (const Error& error) {
    PyEval_RestoreThread(state);
    set_python_error(error);
    return false;
  } catch (const std::exception& error) {
    PyEval_RestoreThread(state);
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return false;
  }
  PyEval_RestoreThread(state);
  return true;
}

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
