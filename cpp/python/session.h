// Session: calling a method as if it were a Python function, at the cost of a few hundred
// nanoseconds. See session.cpp for the ways that calls take.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "cpp/python/exchange.h"
#include "cpp/python/held.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/sized_program.h"
#include "cpp/runtime/turn.h"
#include "cpp/runtime/weights.h"

namespace npusim::python {

// One input or output in NumPy's terms, and in DLPack's.
struct Port {
  pybind11::object descr;  // null: NumPy lacks the dtype (so far), or the buffer is padded
  std::vector<pybind11::ssize_t> shape;
  int64_t bytes;
  ExchangePort tensor;
  const TensorSpec* spec;  // of the program
};

// A kind of tensor that calls come with. Without an exchange: DeviceBuffers.
struct Library {
  pybind11::object type;  // keeps the exchange's table, too
  std::optional<Exchange> exchange;
  // Of the type: tells whether the bits of a tensor are not its values, which the exchange's table
  // does not. Null where that cannot be.
  pybind11::object is_lazy;
  // Counts modes in which the library makes tensors without values. Null: the library takes no
  // tensors of the host that were made for it.
  pybind11::object count_modes;
};
using LibraryPtr = std::shared_ptr<const Library>;

// What makes each output as a tensor of a library.
struct Makers {
  LibraryPtr library;
  std::vector<pybind11::object> outputs;  // callables without arguments
};
using MakersPtr = std::shared_ptr<const Makers>;

// A method as it is called: of fixed sizes, or at those of a call.
struct Form {
  std::vector<int64_t> sizes;              // of the method's symbols; none when there are none
  std::shared_ptr<const Program> program;  // whose specs the ports show
  std::vector<Port> inputs, outputs;
  MakersPtr makers;  // of the library that calls came with last
};
using FormPtr = std::shared_ptr<Form>;

// A call with tensors, on its way. It holds what it goes by: while PyTorch makes its outputs, a
// call on another thread may come with tensors of another library.
struct TensorCall {
  FormPtr form;
  MakersPtr makers;
};

constexpr size_t kFastPorts = 16;  // methods with more inputs or outputs take the slow path

// Where the arrays of one call lie; on the stack, because calls may overlap.
using Bindings = std::array<Binding, kFastPorts>;

// What one call reads besides arrays that are as the kernels read them: memory that objects of
// Python's buffer protocol lend, and contiguous copies of other arrays. Held until it has ended.
class LentBuffers {
 public:
  LentBuffers() = default;
  LentBuffers(const LentBuffers&) = delete;
  LentBuffers& operator=(const LentBuffers&) = delete;
  ~LentBuffers() { give_back(); }

  void give_back();
  // Whether the object lends memory as the port says; says where. Arrays, and tensors of libraries,
  // have ways of their own. Never leaves a Python error set.
  bool bind(PyObject* object, const Port& port, Binding& binding);
  // As bind, for an array of the port's dtype and shape, of which it makes a copy.
  bool bind_copy(PyObject* array, const Port& port, Binding& binding);

 private:
  std::array<Py_buffer, kFastPorts> views_;
  std::array<PyObject*, kFastPorts> copies_;
  size_t count_ = 0, copied_ = 0;
};

class Session {
 public:
  Session(std::shared_ptr<Executor> executor, std::shared_ptr<Weights> weights, size_t method);

  // The form in which every argument can be bound as the array or buffer it is, with the bindings
  // filled; null when there is none. A Python error may be set then: the sizes are the method's,
  // and it cannot be made ready for them.
  FormPtr bind_arrays(PyObject* args, Bindings& bindings, LentBuffers& lent);
  // A new tuple of uninitialised arrays; null with a Python error set.
  PyObject* make_outputs(const Form& form, Bindings& bindings) const;
  // False with a Python error set.
  bool run(const Form& form, const Bindings& inputs, const Bindings& outputs) const;

  // As bind_arrays, for tensors of one library. `self` is the session's Python object.
  std::optional<TensorCall> bind_tensors(PyObject* self, PyObject* args, Bindings& bindings);
  // A new tuple of the library's tensors; null with a Python error set.
  PyObject* make_tensors(const TensorCall& call, Bindings& bindings) const;
  // Puts the work into the library's queue; waits only if the method can fail. False with a Python
  // error set.
  bool enqueue(const TensorCall& call, const Bindings& inputs, const Bindings& outputs) const;

 private:
  using Memories = std::vector<std::shared_ptr<Memory>>;
  template <typename Fits>
  FormPtr find(const Fits& fits);
  void know_dtypes();
  bool learn(const std::vector<Shape>& shapes);
  std::optional<std::vector<Shape>> array_shapes(PyObject* args) const;
  std::optional<std::vector<Shape>> tensor_shapes(const Library& library, PyObject* args) const;
  struct Place {
    std::shared_ptr<Memory> memory;
    bool in_place = false;  // it is the array
  };
  Place place(const Binding& array, const Port& whole, std::shared_ptr<Memory>& kept) const;
  void run_with_copies(const Form& form, const Bindings& inputs, const Bindings& outputs) const;
  LibraryPtr meet(PyObject* self, PyTypeObject* type);
  MakersPtr ask_makers(PyObject* self, const LibraryPtr& library, const Form& form) const;
  bool bind_one(const Library& library, PyObject* tensor, const Port& port, Binding& binding) const;
  PyObject* make_tensor(const TensorCall& call, size_t index, Binding& binding) const;

  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Weights> weights_;
  size_t method_;
  FormPtr whole_;               // as the program has the method, at its greatest sizes
  bool symbolic_;               // sizes of calls settle its shapes
  std::vector<FormPtr> forms_;  // that calls had, the latest first; changed under the GIL alone
  pybind11::object bfloat16_;   // ml_dtypes' descriptor; null before it was imported
  bool takes_bfloat16_;         // an input is of it
  bool fast_;
  bool dense_;  // no input or output is padded
  ExchangePlace here_ = {};
  StreamDevice* streams_;  // of the device; null: it has none
  bool synchronous_;       // the device is
  bool uses_host_memory_;  // the device's kernels run over arrays where they lie
  LibraryPtr met_;         // last; null at first
  // For arrays of the host that the device does not use where they lie; made by the first call with
  // such.
  mutable Memories device_inputs_, device_outputs_;
  mutable TurnFlag copying_{0};
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
