// A call goes straight from the type's tp_call to the executor. What is common (contiguous NumPy
// arrays or buffers of exactly the right dtype and shape, all given in order) is bound by pointer,
// and the outputs are fresh NumPy arrays that the run writes into; a device with memory of its own
// gets buffers that the session keeps, and the arrays are copied there and back. Tensors of
// libraries with DLPack's C interface that lie on the device are bound by pointer too, outputs are
// such tensors, and the work goes to their library's queue; so are DeviceBuffers, in the device's
// own queue. Everything else goes to the Python method `_call_slow(args, kwargs)` of the subclass,
// which also words the errors. session_arrays.cpp and session_tensors.cpp have the two common ways.
// What a call's shapes mean to a method with symbolic sizes is found out once, and the latest forms
// are kept.
#include "cpp/python/session.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "cpp/python/bindings.h"
#include "cpp/python/unlocked.h"
#include "cpp/runtime/error.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

constexpr size_t kKeptForms = 8;

// The dtype that ml_dtypes gives NumPy, if it was imported; no array of it comes before that.
py::object ml_dtypes_bfloat16() {
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* module = PyDict_GetItemString(modules, "ml_dtypes");
  if (module == nullptr) return {};
  PyObject* type = PyObject_GetAttrString(module, "bfloat16");
  PyObject* descr = nullptr;
  if (type != nullptr) {
    py::detail::npy_api::get().PyArray_DescrConverter_(type, &descr);
    Py_DECREF(type);
  }
  PyErr_Clear();  // a module of that name without the dtype
  return py::reinterpret_steal<py::object>(descr);
}

// Null for bfloat16, which NumPy lacks.
py::object numpy_dtype(DType dtype) {
  if (dtype == DType::kBfloat16) return {};
  return py::dtype(std::string(dtype_name(dtype)));
}

bool takes_bfloat16(const std::vector<TensorSpec>& inputs) {
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const TensorSpec& spec) { return spec.dtype == DType::kBfloat16; });
}

std::vector<Port> ports(const Program& program, const std::vector<TensorSpec>& specs) {
  std::vector<Port> out;
  for (const TensorSpec& spec : specs) {
    Port& port = out.emplace_back();
    if (spec.shape == spec.alloc_shape) port.descr = numpy_dtype(spec.dtype);
    port.shape.assign(spec.shape.begin(), spec.shape.end());
    port.bytes = program.buffers[spec.buffer].bytes;
    port.tensor = {dl_type(spec.dtype), spec.shape, port.bytes};
    port.spec = &spec;
  }
  return out;
}

FormPtr form_of(std::shared_ptr<const Program> program, const Method& method,
                std::vector<int64_t> sizes) {
  const auto form = std::make_shared<Form>();
  form->sizes = std::move(sizes);
  form->inputs = ports(*program, method.inputs);
  form->outputs = ports(*program, method.outputs);
  form->program = std::move(program);
  return form;
}

void set_bfloat16(std::vector<Port>& ports, const py::object& descr) {
  for (Port& port : ports) {
    const bool padded = port.spec->shape != port.spec->alloc_shape;
    if (port.spec->dtype == DType::kBfloat16 && !padded) port.descr = descr;
  }
}
void set_bfloat16(Form& form, const py::object& descr) {
  if (!descr) return;
  set_bfloat16(form.inputs, descr);
  set_bfloat16(form.outputs, descr);
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

}  // namespace

Session::Session(std::shared_ptr<Executor> executor, std::shared_ptr<Weights> weights,
                 size_t method)
    : executor_(std::move(executor)), weights_(std::move(weights)), method_(method) {
  const Program& program = executor_->program();
  if (method_ >= program.methods.size()) throw py::index_error("no such method");
  const Method& called = program.methods[method_];
  whole_ = form_of(executor_->shared_program(), called, {});
  symbolic_ = !called.sizes.symbols.empty();
  if (!symbolic_) forms_.push_back(whole_);
  takes_bfloat16_ = takes_bfloat16(called.inputs);
  know_dtypes();
  dense_ = all_dense(called.inputs) && all_dense(called.outputs);
  Device& device = executor_->device();
  streams_ = device.streams();
  synchronous_ = device.synchronous();
  uses_host_memory_ = device.addressing() == Addressing::kHost;
  here_.has_addresses = device.addressing() != Addressing::kHandles;
  here_.alignment = device.alignment();
  if (device.foreign_names()) here_.device = dl_device(device);
}

// Finds out whether NumPy has all dtypes. A method that takes bfloat16 gives it as well; one that
// takes none gives float32 in its place, which is the long way's.
void Session::know_dtypes() {
  if (takes_bfloat16_ && !bfloat16_) {
    bfloat16_ = ml_dtypes_bfloat16();
    set_bfloat16(*whole_, bfloat16_);
    for (const FormPtr& form : forms_) set_bfloat16(*form, bfloat16_);
  }
  fast_ = all_fast(whole_->inputs) && all_fast(whole_->outputs);
}

// Makes the method ready for what shapes of all inputs mean, and puts that form in front. False
// when they mean nothing (the long way has the words for it) or nothing new, and with a Python
// error set when the method cannot be made ready.
bool Session::learn(const std::vector<Shape>& shapes) {
  std::vector<int64_t> sizes;
  try {
    sizes = symbols_of(executor_->program().methods[method_], shapes);
  } catch (const Error&) {
    return false;
  }
  const auto known = [&](const FormPtr& form) { return form->sizes == sizes; };
  if (std::any_of(forms_.begin(), forms_.end(), known)) return false;
  std::shared_ptr<const Program> program;
  if (!run_unlocked([&] { program = executor_->prepare(method_, sizes); })) return false;
  const Method& method = program->methods.front();
  forms_.insert(forms_.begin(), form_of(program, method, std::move(sizes)));
  set_bfloat16(*forms_.front(), bfloat16_);
  if (forms_.size() > kKeptForms) forms_.pop_back();
  return true;
}

namespace {

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

PyObject* call_by_form(PyObject* self, PyObject* args, PyObject* kwargs) {
  const auto* instance = reinterpret_cast<py::detail::instance*>(self);
  auto* session =
      instance->simple_layout ? static_cast<Session*>(instance->simple_value_holder[0]) : nullptr;
  if (session == nullptr) {
    PyErr_SetString(PyExc_TypeError, "the session's __init__ was not called");
    return nullptr;
  }
  Bindings inputs, outputs;
  LentBuffers lent;
  const bool positional = kwargs == nullptr || PyDict_GET_SIZE(kwargs) == 0;
  if (!positional) return call_slow(self, args, kwargs);
  if (const FormPtr form = session->bind_arrays(args, inputs, lent)) {
    PyObject* results = session->make_outputs(*form, outputs);
    if (results != nullptr && !session->run(*form, inputs, outputs)) Py_CLEAR(results);
    return results;
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (const auto tensors = session->bind_tensors(self, args, inputs)) {
    PyObject* results = session->make_tensors(*tensors, outputs);
    if (results != nullptr && !session->enqueue(*tensors, inputs, outputs)) Py_CLEAR(results);
    return results;
  }
  return PyErr_Occurred() != nullptr ? nullptr : call_slow(self, args, kwargs);
}

// tp_call of the Session type.
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  try {
    return call_by_form(self, args, kwargs);
  } catch (const std::exception&) {
    set_caught_error();
    return nullptr;
  }
}

}  // namespace

void bind_session(py::module_& module) {
  const auto callable = [](PyHeapTypeObject* type) { type->ht_type.tp_call = call; };
  py::class_<Session>(module, "Session", py::custom_type_setup(callable))
      .def(py::init([](std::shared_ptr<Executor> executor, const Maybe<Weights>& weights,
                       size_t method) {
             return std::make_unique<Session>(std::move(executor), weights.value_or(nullptr),
                                              method);
           }),
           py::arg("executor"), py::arg("weights"), py::arg("method"));
}

}  // namespace npusim::python
