// Session: calling a method as if it were a Python function, at the cost of a few hundred
// nanoseconds. See session.cpp for the ways that calls take.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "cpp/python/exchange.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/sized_program.h"
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

// A method as it is called: of fixed sizes, or at those of a call.
struct Form {
  std::vector<int64_t> sizes;              // of the method's symbols; none when there are none
  std::shared_ptr<const Program> program;  // whose specs the ports show
  std::vector<Port> inputs, outputs;
  const PyTypeObject* made_for = nullptr;  // the type of tensors that the makers make
  std::vector<pybind11::object> makers;    // of each output
};
using FormPtr = std::shared_ptr<Form>;

constexpr size_t kFastPorts = 16;  // methods with more inputs or outputs take the slow path

// Where the arrays of one call lie; on the stack, because calls may overlap.
using Bindings = std::array<Binding, kFastPorts>;

class Session {
 public:
  Session(std::shared_ptr<Executor> executor, std::shared_ptr<Weights> weights, size_t method);

  // The form in which every argument can be bound as the array it is, with the bindings filled;
  // null when there is none. A Python error may be set then: the sizes are the method's, and it
  // cannot be made ready for them.
  FormPtr bind_arrays(PyObject* args, Bindings& bindings);
  // A new tuple of uninitialised arrays; null with a Python error set.
  PyObject* make_outputs(const Form& form, Bindings& bindings) const;
  // False with a Python error set.
  bool run(const Form& form, const Bindings& inputs, const Bindings& outputs) const;

  // As bind_arrays, for tensors of one library. `self` is the session's Python object.
  FormPtr bind_tensors(PyObject* self, PyObject* args, Bindings& bindings);
  // Behind bind_tensors: a new tuple of the library's tensors; null with a Python error set.
  PyObject* make_tensors(const Form& form, Bindings& bindings) const;
  // Puts the work into the library's queue; waits only if the method can fail. False with a Python
  // error set.
  bool enqueue(const Form& form, const Bindings& inputs, const Bindings& outputs) const;

 private:
  using Memories = std::vector<std::shared_ptr<Memory>>;
  template <typename Fits>
  FormPtr find(const Fits& fits);
  bool learn(const std::vector<Shape>& shapes);
  std::optional<std::vector<Shape>> array_shapes(PyObject* args) const;
  std::optional<std::vector<Shape>> tensor_shapes(PyObject* args) const;
  Memories allocate(const std::vector<Port>& ports) const;
  void run_with_copies(const Form& form, const Bindings& inputs, const Bindings& outputs) const;
  bool meet(PyTypeObject* type);
  bool ask_makers(PyObject* self, Form& form) const;
  bool bind_one(PyObject* tensor, const Port& port, Binding& binding) const;

  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Weights> weights_;
  size_t method_;
  FormPtr whole_;               // as the program has the method, at its greatest sizes
  bool symbolic_;               // sizes of calls settle its shapes
  std::vector<FormPtr> forms_;  // that calls had, the latest first; changed under the GIL alone
  bool fast_;
  bool dense_;  // no input or output is padded
  DlDevice here_ = {};
  size_t alignment_ = 1;  // of a tensor's address
  // The library met last: its tensor type, kept. There is no exchange for DeviceBuffers.
  PyTypeObject* met_ = nullptr;
  pybind11::object kept_;
  std::optional<Exchange> exchange_;
  // For arrays of the host on a device that does not share its memory; made by the first call.
  mutable Memories device_inputs_, device_outputs_;
  mutable std::atomic<bool> copying_{false};
};

// The form among those known whose arguments fit, which becomes the first; null when none does.
template <typename Fits>
FormPtr Session::find(const Fits& fits) {
  for (size_t i = 0; i < forms_.size(); ++i) {
    if (!fits(*forms_[i])) continue;
    if (i > 0)
      std::rotate(forms_.begin(), forms_.begin() + static_cast<ptrdiff_t>(i),
                  forms_.begin() + static_cast<ptrdiff_t>(i) + 1);
    return forms_.front();
  }
  return nullptr;
}

}  // namespace npusim::python
