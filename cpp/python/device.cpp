#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#endif

#include "cpp/cpu/isa.h"
#include "cpp/python/bindings.h"
#include "cpp/python/buffer.h"
#include "cpp/python/dlpack.h"
#include "cpp/runtime/device.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

bool is_main_thread() {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();
#else
  return pthread_main_np() != 0;
#endif
}

std::vector<std::string_view> isa_names() {
  std::vector<std::string_view> names;
  for (const cpu::Isa& isa : cpu::usable_isas()) names.push_back(isa.name);
  return names;
}

// Kernel name -> parameter schema, of one instruction set.
py::dict kernel_schemas(std::string_view isa) {
  py::dict schemas;
  for (const cpu::KernelEntry* kernel : cpu::choose_isa(isa).kernels()) {
    schemas[kernel->name] = kernel->schema;
  }
  return schemas;
}

py::bytes bytes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A maker in Python: gets (name, schema, params, like) of each kernel, and returns a list of images
// or, as text, why there are none.
MadeKernels ask(py::handle maker, std::span<const WantedKernel> wanted) {
  const py::gil_scoped_acquire locked;
  py::list rows;
  for (const WantedKernel& kernel : wanted) {
    rows.append(
        py::make_tuple(kernel.name, kernel.schema, bytes_of(kernel.params), bytes_of(kernel.like)));
  }
  const py::object answer = maker(rows);
  if (py::isinstance<py::str>(answer)) return {{}, py::cast<std::string>(answer)};
  MadeKernels made;
  for (const py::handle image : answer) {
    const auto bytes = std::as_bytes(std::span(py::cast<std::string_view>(image)));
    made.images.emplace_back(bytes.begin(), bytes.end());
  }
  return made;
}

// Stems whose output may lie where an operand lies.
py::list in_place_kernels() {
  py::list names;
  for (const cpu::KernelEntry* kernel : cpu::usable_isas().back().kernels()) {
    if (kernel->in_place != nullptr) names.append(kernel->name);
  }
  return names;
}

// Python handles signals on its main thread only, which is the process's, and not while that waits
// for a run. The lock of the interpreter may be dear: it is not taken more often than a person can
// tell.
void raise_signals() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kApart = std::chrono::milliseconds(50);
  thread_local Clock::time_point latest;
  const Clock::time_point now = Clock::now();
  if (!is_main_thread() || now - latest < kApart) return;
  latest = now;
  const py::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

std::shared_ptr<Device> open(std::string_view name, std::optional<int> threads, bool pin_threads,
                             std::optional<std::string> isa, int ordinal,
                             std::vector<std::string> library_folders,
                             std::optional<py::function> make_kernels, int64_t max_work) {
  KernelMaker maker;
  if (make_kernels) {
    const py::handle function = *make_kernels;
    maker = [function, owner = keep_alive(*make_kernels)](std::span<const WantedKernel> wanted) {
      return ask(function, wanted);
    };
  }
  const DeviceOptions options{.threads = threads.value_or(0),
                              .pin_threads = pin_threads,
                              .isa = std::move(isa).value_or(""),
                              .ordinal = ordinal,
                              .library_folders = std::move(library_folders),
                              .make_kernels = std::move(maker),
                              .interruption = raise_signals,
                              .max_work = max_work};
  return open_device(name, options);
}

}  // namespace

void bind_device(py::module_& module) {
  module.def("device_names", &device_names, "The devices of this build, in order of preference.");
  module.def("isa_names", &isa_names, "Instruction sets the cpu device can use here, best first.");
  module.def("in_place_kernels", &in_place_kernels,
             "The cpu kernels that may write a result where they read an operand.");
  module.def("kernel_schemas", &kernel_schemas, py::arg("isa") = "",
             "The cpu kernels of an instruction set: name -> parameter schema.");
  py::class_<Device, std::shared_ptr<Device>> type(module, "Device");
  copy_as_itself(type);
  type.def(py::init(&open), py::arg("name"), py::arg("threads") = py::none(),
           py::arg("pin_threads") = false, py::arg("isa") = py::none(), py::arg("ordinal") = 0,
           py::arg("library_folders") = std::vector<std::string>(),
           py::arg("make_kernels") = py::none(), py::arg("max_work") = 0)
      .def_property_readonly("name", &Device::name)
      .def_property_readonly("kind", &Device::kind)
      .def_property_readonly("description", &Device::description)
      .def_property_readonly("shares_host_memory", &Device::shares_host_memory)
      .def_property_readonly("ordinal", &Device::ordinal)
      .def_property_readonly("stream", &Device::stream)
      .def("wait_for", &Device::wait_for, py::arg("stream"),
           py::call_guard<py::gil_scoped_release>())
      .def("order", &Device::order, py::arg("before"), py::arg("after"),
           py::call_guard<py::gil_scoped_release>(),
           "Lets what is put into one stream from now on wait for what stands in another.")
      .def_property_readonly("dlpack_device", [](const Device& self) {
        const DlDevice device = dl_device(self);
        return py::make_tuple(device.type, device.id);
      });
}

}  // namespace npusim::python
