// Session: calling a method as if it were a Python function, at the cost of a few hundred
// nanoseconds. See session.cpp for the ways that calls take.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "cpp/python/exchange.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/weights.h"

namespace npusim::python {

// One input or output in NumPy's terms, and in DLPack's.
struct Port {
  pybind11::object descr;  // null: NumPy lacks the dtype, or the buffer is padded
  std::vector<pybind11::ssize_t> shape;
  size_t bytes;
  ExchangePort tensor;
  const TensorSpec* spec;  // of the program
};

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
  pybind11::object kept_;
  std::optional<Exchange> exchange_;
  std::vector<pybind11::object> makers_;
  // For arrays of the host on a device that does not share its memory; made by the first call.
  mutable Memories device_inputs_, device_outputs_;
  mutable std::atomic<bool> copying_{false};
};

}  // namespace npusim::python
