#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>

#include "cpp/cpu/isa.h"
#include "cpp/platform/cores.h"
#include "cpp/platform/process.h"
#include "cpp/python/bindings.h"
#include "cpp/python/buffer.h"
#include "cpp/python/dlpack.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/error.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

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
  if (!platform::may_be_main_thread() || now - latest < kApart) return;
  latest = now;
  const py::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

OptionValue option_value(const std::string& name, py::handle value) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (py::isinstance<py::str>(value)) return py::cast<std::string>(value);
  if (PyIndex_Check(value.ptr())) {
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    const int64_t whole = number ? PyLong_AsLongLong(number.ptr()) : -1;
    if (PyErr_Occurred() == nullptr) return whole;
    PyErr_Clear();
  }
  throw Error(ErrorCode::kDevice, "the option " + name + " is no number, text or truth value: " +
                                      py::cast<std::string>(py::repr(value)));
}

std::shared_ptr<Device> open(std::string_view name, const py::dict& options,
                             std::vector<std::string> library_folders,
                             std::optional<py::function> make_kernels) {
  KernelMaker maker;
  if (make_kernels) {
    const py::handle function = *make_kernels;
    maker = [function, owner = keep_alive(*make_kernels)](std::span<const WantedKernel> wanted) {
      return ask(function, wanted);
    };
  }
  DeviceOptions given;
  for (const auto& [key, value] : options) {
    const auto option = py::cast<std::string>(key);
    given.set(option, option_value(option, value));
  }
  return open_device(name, given,
                     {.library_folders = std::move(library_folders),
                      .make_kernels = std::move(maker),
                      .interruption = raise_signals});
}

// Option -> (default, meaning).
py::dict options_of(std::string_view name) {
  py::dict options;
  for (const OptionInfo& option : device_options(name)) {
    options[py::str(option.name)] = py::make_tuple(option.otherwise, option.meaning);
  }
  return options;
}

// (name, what was found or why not, whether it is there) of each part.
py::list parts_of(std::string_view name, std::vector<std::string> library_folders) {
  py::list parts;
  for (const DevicePart& part :
       device_parts(name, {.library_folders = std::move(library_folders)})) {
    parts.append(py::make_tuple(part.name, part.found, part.is_there));
  }
  return parts;
}

// 0 is no stream, and the only one that a device without streams is given.
StreamDevice* streams_of(Device& device, std::initializer_list<uintptr_t> given) {
  StreamDevice* streams = device.streams();
  const bool some = std::any_of(given.begin(), given.end(), [](uintptr_t it) { return it != 0; });
  if (streams == nullptr && some) {
    throw Error(ErrorCode::kDevice, "the device " + std::string(device.name()) + " has no streams");
  }
  return streams;
}

void wait_for(Device& device, uintptr_t stream) {
  if (StreamDevice* streams = streams_of(device, {stream})) return streams->wait_for(stream);
  device.synchronize();
}

void order(Device& device, uintptr_t before, uintptr_t after) {
  if (StreamDevice* streams = streams_of(device, {before, after})) streams->order(before, after);
}

bool holds(Device& device, uintptr_t address) {
  StreamDevice* streams = device.streams();
  return streams != nullptr && streams->holds(address);
}

}  // namespace

void bind_device(py::module_& module) {
  module.def("device_names", &device_names, "The devices of this build, in order of preference.");
  module.def("device_options", &options_of, py::arg("name"),
             "The options of a device: name -> (default, meaning).");
  module.def("device_parts", &parts_of, py::arg("name"), py::arg("library_folders"),
             "What a device uses that npusim does not bring, and may lie in the folders: (name, "
             "version and place or why it is not there, whether it is there).");
  module.def(
      "usable_cores", [] { return std::ssize(platform::usable_cores()); },
      "Physical cores that this process may use: the workers of a cpu device by default.");
  module.def("isa_names", &isa_names, "Instruction sets the cpu device can use here, best first.");
  module.def("in_place_kernels", &in_place_kernels,
             "The cpu kernels that may write a result where they read an operand.");
  module.def("kernel_schemas", &kernel_schemas, py::arg("isa") = "",
             "The cpu kernels of an instruction set: name -> parameter schema.");
  py::class_<Device, std::shared_ptr<Device>> type(module, "Device");
  copy_as_itself(type);
  type.def(py::init(&open), py::arg("name"), py::arg("options") = py::dict(),
           py::arg("library_folders") = std::vector<std::string>(),
           py::arg("make_kernels") = py::none())
      .def_property_readonly("name", &Device::name)
      .def_property_readonly("kind", &Device::kind)
      .def_property_readonly("description", &Device::description)
      .def(
          "measure_rates",
          [](Device& self) {
            std::vector<MeasuredRate> rates;
            {
              const py::gil_scoped_release unlocked;
              rates = self.measure_rates();
            }
            py::dict found;
            for (const MeasuredRate& rate : rates) found[py::str(rate.what)] = rate.per_second;
            return found;
          },
          "What the device reaches at best: bytes a second that it reads (\"read\"), operations a "
          "second on factors of each dtype. Empty where that is not measured. Half a second.")
      .def_property_readonly(
          "uses_host_memory",
          [](const Device& self) { return self.addressing() == Addressing::kHost; },
          "Whether kernels run over arrays of the host where they lie.")
      .def_property_readonly("host_visible", &Device::host_visible,
                             "Whether the host can read the device's memory itself.")
      .def_property_readonly("synchronous", &Device::synchronous,
                             "Whether nothing is under way when a call returns.")
      .def_property_readonly(
          "alignment", &Device::alignment,
          "What a tensor's address has to be a multiple of, to be used in place.")
      .def_property_readonly("ordinal", &Device::ordinal)
      .def("synchronize", &Device::synchronize, py::call_guard<py::gil_scoped_release>(),
           "Waits for all work that was given to the device.")
      .def_property_readonly(
          "has_streams", [](Device& self) { return self.streams() != nullptr; },
          "Whether work stands in streams that other libraries share.")
      .def_property_readonly("stream",
                             [](Device& self) {
                               StreamDevice* streams = self.streams();
                               return streams == nullptr ? 0 : streams->stream();
                             })
      .def("wait_for", &wait_for, py::arg("stream"), py::call_guard<py::gil_scoped_release>())
      .def("order", &order, py::arg("before"), py::arg("after"),
           py::call_guard<py::gil_scoped_release>(),
           "Lets what is put into one stream from now on wait for what stands in another.")
      .def("holds", &holds, py::arg("address"),
           "Whether memory at an address that streams work on is this device's.")
      .def_property_readonly(
          "speaks_cuda",
          [](const Device& self) {
            const auto names = self.foreign_names();
            return names && names->speaks_cuda;
          },
          "Whether its addresses and streams are CUDA's.")
      .def_property_readonly(
          "torch_name",
          [](const Device& self) -> std::optional<std::string> {
            if (const auto names = self.foreign_names()) return names->torch;
            return std::nullopt;
          },
          "What PyTorch calls the device, such as 'cuda:1'; None where it has no tensors there.")
      .def_property_readonly("dlpack_device", [](const Device& self) {
        const DlDevice device = dl_device(self);
        return py::make_tuple(device.type, device.id);
      });
}

}  // namespace npusim::python
