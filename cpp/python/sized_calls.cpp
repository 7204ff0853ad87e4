// Calls of a method with symbolic sizes over NumPy arrays, at little more than the cost of a call
// of fixed sizes: what shapes mean is looked up once for each combination, and the latest are kept.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <vector>

#include "cpp/python/bindings.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/sized_program.h"
#include "cpp/runtime/weights.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

constexpr size_t kKeptForms = 8;

// An input or output at the sizes of a call, in NumPy's terms.
struct Port {
  py::object descr;
  std::vector<py::ssize_t> shape;
  size_t bytes;
};

// The method at some sizes.
struct Form {
  std::vector<int64_t> sizes;
  std::vector<Port> inputs, outputs;
};
using FormPtr = std::shared_ptr<const Form>;

bool in_numpy(const std::vector<TensorSpec>& specs) {
  return std::none_of(specs.begin(), specs.end(),
                      [](const auto& spec) { return spec.dtype == DType::kBfloat16; });
}

std::vector<Port> ports(const Program& program, const std::vector<TensorSpec>& specs) {
  std::vector<Port> out;
  for (const TensorSpec& spec : specs) {
    const auto bytes = static_cast<size_t>(program.buffers[spec.buffer].bytes);
    out.push_back({py::dtype(std::string(dtype_name(spec.dtype))),
                   {spec.shape.begin(), spec.shape.end()},
                   bytes});
  }
  return out;
}

// The array of a form's input, where it lies; empty when it is another one.
bool bind_array(py::handle value, const Port& port, Binding& binding) {
  constexpr int kNeeded =
      py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if (Py_TYPE(value.ptr()) != py::detail::npy_api::get().PyArray_Type_) return false;
  const auto* array = py::detail::array_proxy(value.ptr());
  // NumPy has one descriptor for each native dtype, so comparing pointers is enough.
  const bool fits = array->descr == port.descr.ptr() && (array->flags & kNeeded) == kNeeded &&
                    static_cast<size_t>(array->nd) == port.shape.size() &&
                    std::equal(port.shape.begin(), port.shape.end(), array->dimensions);
  if (fits) binding = {reinterpret_cast<std::byte*>(array->data), port.bytes};
  return fits;
}

class SizedCalls {
 public:
  SizedCalls(std::shared_ptr<Executor> executor, std::shared_ptr<Weights> weights, size_t method)
      : executor_(std::move(executor)), weights_(std::move(weights)), method_(method) {
    const Program& program = executor_->program();
    if (method_ >= program.methods.size()) throw py::index_error("no such method");
    const Method& called = program.methods[method_];
    served_ = executor_->device().shares_host_memory() && in_numpy(called.inputs) &&
              in_numpy(called.outputs);
  }

  // The results; None when an argument is no contiguous array that fits as it is.
  py::object call(const py::tuple& args) {
    std::vector<Binding> inputs(args.size()), outputs;
    const FormPtr form = form_for(args, inputs);
    if (form == nullptr) return py::none();
    py::tuple results(form->outputs.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const Port& port = form->outputs[i];
      py::array array(py::reinterpret_borrow<py::dtype>(port.descr), port.shape);
      outputs.push_back({static_cast<std::byte*>(array.mutable_data()), port.bytes});
      results[i] = std::move(array);
    }
    {
      const py::gil_scoped_release unlocked;
      executor_->run(method_, inputs, outputs, weights_.get(), nullptr, form->sizes);
    }
    return results;
  }

 private:
  FormPtr form_for(const py::tuple& args, std::vector<Binding>& bindings) {
    if (!served_ || args.size() != executor_->program().methods[method_].inputs.size()) {
      return nullptr;
    }
    for (auto form = forms_.begin(); form != forms_.end(); ++form) {
      if (!fits(**form, args, bindings)) continue;
      std::rotate(forms_.begin(), form, form + 1);
      return forms_.front();
    }
    return learn(args) && fits(*forms_.front(), args, bindings) ? forms_.front() : nullptr;
  }

  static bool fits(const Form& form, const py::tuple& args, std::vector<Binding>& bindings) {
    for (size_t i = 0; i < form.inputs.size(); ++i) {
      if (!bind_array(args[i], form.inputs[i], bindings[i])) return false;
    }
    return true;
  }

  // Puts the form of arrays that were not seen yet in front; false when they fit none.
  bool learn(const py::tuple& args) {
    std::vector<Shape> shapes;
    for (const py::handle value : args) {
      if (Py_TYPE(value.ptr()) != py::detail::npy_api::get().PyArray_Type_) return false;
      const auto* array = py::detail::array_proxy(value.ptr());
      shapes.emplace_back(array->dimensions, array->dimensions + array->nd);
    }
    const auto program = executor_->shared_program();
    try {
      std::vector<int64_t> sizes = symbols_of(program->methods[method_], shapes);
      const auto sized = at_sizes(program, method_, sizes);
      const Method& method = sized->methods.front();
      forms_.insert(forms_.begin(), std::make_shared<const Form>(
                                        Form{std::move(sizes), ports(*sized, method.inputs),
                                             ports(*sized, method.outputs)}));
    } catch (const Error&) {
      return false;  // the long way has the words
    }
    if (forms_.size() > kKeptForms) forms_.pop_back();
    return true;
  }

  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Weights> weights_;
  size_t method_;
  bool served_;
  std::vector<FormPtr> forms_;  // the latest first; changed under the GIL alone
};

}  // namespace

void bind_sized_calls(py::module_& module) {
  py::class_<SizedCalls>(module, "SizedCalls")
      .def(py::init<std::shared_ptr<Executor>, std::shared_ptr<Weights>, size_t>(),
           py::arg("executor"), py::arg("weights"), py::arg("method"))
      .def("call", &SizedCalls::call, py::arg("args"),
           "The results for contiguous arrays that fit as they are; None for other arguments.");
}

}  // namespace npusim::python
