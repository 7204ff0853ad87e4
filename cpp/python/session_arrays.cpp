// Calls with contiguous NumPy arrays.
#include <pybind11/numpy.h>

#include <algorithm>

#include "cpp/python/session.h"
#include "cpp/python/unlocked.h"
#include "cpp/runtime/turn.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

constexpr const char* kBusy =
    "this session is running on another thread; give each thread a session of its own (they can "
    "share weights), or take turns";

}  // namespace

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
  return run_unlocked([&] {
    if (executor_->device().shares_host_memory()) {
      executor_->run(method_, {inputs.data(), inputs_.size()}, {outputs.data(), outputs_.size()},
                     weights_.get());
    } else {
      run_with_copies(inputs, outputs);
    }
  });
}

}  // namespace npusim::python
