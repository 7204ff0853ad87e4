#include "cpp/runtime/executor.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <algorithm>
#include <chrono>

#include "cpp/python/bindings.h"
#include "cpp/python/buffer.h"
#include "cpp/runtime/held_tensors.h"
#include "cpp/runtime/packed_weights.h"
#include "cpp/runtime/watched_file.h"
#include "cpp/runtime/weights.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

// name -> (dtype, shape, address, owner): dense row-major elements at `address`.
std::shared_ptr<const TensorSource> held_tensors(const py::dict& tensors) {
  std::vector<CheckpointTensor> held;
  for (const auto& [key, value] : tensors) {
    const auto entry = py::cast<py::tuple>(value);
    CheckpointTensor tensor{.name = py::cast<std::string>(key),
                            .dtype_name = py::cast<std::string>(entry[0]),
                            .dtype = find_dtype(py::cast<std::string>(entry[0])),
                            .shape = py::cast<std::vector<int64_t>>(entry[1]),
                            .data = {}};
    if (tensor.dtype) {
      const auto* data = reinterpret_cast<const std::byte*>(py::cast<uintptr_t>(entry[2]));
      tensor.data = {data, static_cast<size_t>(dense_bytes(tensor.shape, *tensor.dtype))};
    }
    held.push_back(std::move(tensor));
  }
  return std::make_shared<HeldTensors>(std::move(held), keep_alive(tensors));
}

std::shared_ptr<Weights> load_weights(std::shared_ptr<Program> program,
                                      std::shared_ptr<Device> device,
                                      std::shared_ptr<const TensorSource> source, bool check_nan,
                                      bool copy, KeyNames names,
                                      const std::optional<py::function>& progress) {
  Weights::Options options{
      .check_nan = check_nan, .copy = copy, .names = std::move(names), .progress = {}};
  if (progress) {
    options.progress = [told = py::handle(*progress)](int64_t done, int64_t total) {
      const py::gil_scoped_acquire locked;
      told(done, total);
    };
  }
  const py::gil_scoped_release unlocked;
  return std::const_pointer_cast<Weights>(
      Weights::load(std::move(program), std::move(device), std::move(source), options));
}

py::bytes bytes_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> span_of(const py::bytes& bytes) {
  return std::as_bytes(std::span(static_cast<std::string_view>(bytes)));
}

py::tuple prepared(const Weights& self) {
  py::list parts;
  self.read([&parts](std::span<const std::byte> bytes) { parts.append(bytes_of(bytes)); });
  py::list weights;
  size_t part = 1;  // behind the arena
  for (const uint32_t buffer : self.kept()) {
    weights.append(py::make_tuple(buffer, parts[part++]));
  }
  return py::make_tuple(parts[0], weights);
}

std::shared_ptr<Weights> from_prepared(std::shared_ptr<Program> program,
                                       std::shared_ptr<Device> device, const py::bytes& persistent,
                                       const std::vector<std::pair<uint32_t, py::bytes>>& weights) {
  PreparedView view{.persistent = span_of(persistent), .weights = {}, .source = nullptr};
  for (const auto& [buffer, bytes] : weights) view.weights.emplace_back(buffer, span_of(bytes));
  return std::const_pointer_cast<Weights>(
      Weights::load_prepared(std::move(program), std::move(device), view));
}

void pack(const Weights& self, const std::filesystem::path& path,
          const std::optional<std::filesystem::path>& checkpoint, KeyNames names,
          bool checked_nan) {
  const py::gil_scoped_release unlocked;
  pack_weights(self, path,
               {.checkpoint = checkpoint.value_or(std::filesystem::path()),
                .names = std::move(names),
                .checked_nan = checked_nan});
}

using WatchedFiles = std::vector<std::unique_ptr<const WatchedFile>>;
constexpr const char* kWatchedFiles = "npusim.watched_files";

py::capsule watch_files(const std::vector<std::pair<uintptr_t, size_t>>& memory) {
  std::vector<std::span<const std::byte>> spans;
  for (const auto& [address, bytes] : memory) {
    spans.emplace_back(reinterpret_cast<const std::byte*>(address), bytes);
  }
  auto files = std::make_unique<WatchedFiles>(watch_files_behind(spans));
  py::capsule capsule(files.get(), kWatchedFiles, [](PyObject* held) {
    delete static_cast<WatchedFiles*>(PyCapsule_GetPointer(held, kWatchedFiles));
  });
  files.release();
  return capsule;
}

void check_files(const py::capsule& watched) {
  const void* files = PyCapsule_GetPointer(watched.ptr(), kWatchedFiles);
  if (files == nullptr) throw py::error_already_set();
  for (const auto& file : *static_cast<const WatchedFiles*>(files)) file->check();
}

void run(Executor& self, size_t method, const Buffers& inputs, const Buffers& outputs,
         const Maybe<Weights>& weights, const Maybe<State>& state,
         const std::vector<int64_t>& sizes) {
  const std::vector<Binding> in = input_bindings(self, inputs),
                             out = output_bindings(self, outputs);
  const bool waits = has_to_settle(self, method, inputs, outputs);
  const py::gil_scoped_release unlocked;
  self.enqueue(method, in, out, pointer(weights), pointer(state), 0, sizes);
  if (waits) self.settle(method);
}

// The tensors of a method at these addresses of the device: dense, and of the specs' shapes.
std::vector<Binding> bindings_at(const Program& program, const std::vector<TensorSpec>& specs,
                                 const std::vector<uintptr_t>& addresses) {
  if (addresses.size() != specs.size()) {
    throw Error(ErrorCode::kInput, "the method has " + std::to_string(specs.size()) +
                                       " tensors there, got " + std::to_string(addresses.size()));
  }
  std::vector<Binding> out;
  for (size_t i = 0; i < specs.size(); ++i) {
    out.push_back({0, addresses[i], program.buffers[specs[i].buffer].bytes});
  }
  return out;
}

void run_at(Executor& self, size_t method, const std::vector<uintptr_t>& inputs,
            const std::vector<uintptr_t>& outputs, const Maybe<Weights>& weights, uintptr_t queue) {
  const Program& program = self.program();
  if (method >= program.methods.size()) throw py::index_error("no such method");
  if (self.device().addressing() == Addressing::kHandles) {
    throw Error(ErrorCode::kInput,
                "memory of the device " + std::string(self.device().name()) + " has no addresses");
  }
  const Method& called = program.methods[method];
  if (!called.sizes.symbols.empty()) {
    throw Error(ErrorCode::kInput, "the method has symbolic sizes, which addresses do not tell");
  }
  const auto in = bindings_at(program, called.inputs, inputs);
  const auto out = bindings_at(program, called.outputs, outputs);
  const py::gil_scoped_release unlocked;
  self.enqueue(method, in, out, pointer(weights), nullptr, queue);
  if (self.can_fail(method)) self.settle(method);
}

void observe(Executor& self, size_t method, const Buffers& inputs, const Buffers& outputs,
             const Maybe<Weights>& weights, const py::function& after, const Maybe<State>& state,
             const std::vector<int64_t>& sizes) {
  const std::vector<Binding> in = input_bindings(self, inputs),
                             out = output_bindings(self, outputs);
  const auto tap = [&](size_t index) {
    const py::gil_scoped_acquire locked;
    after(index);
  };
  const py::gil_scoped_release unlocked;
  self.observe(method, in, out, pointer(weights), tap, pointer(state), sizes);
}

std::vector<double> time_commands(Executor& self, size_t method, const Buffers& inputs,
                                  const Buffers& outputs, const Maybe<Weights>& weights,
                                  const Maybe<State>& state, const std::vector<int64_t>& sizes) {
  const std::vector<Binding> in = input_bindings(self, inputs),
                             out = output_bindings(self, outputs);
  std::vector<double> seconds(self.program().methods.at(method).commands.size());
  const py::gil_scoped_release unlocked;
  self.time(method, in, out, pointer(weights), seconds, pointer(state), sizes);
  return seconds;
}

double time_run(Executor& self, size_t method, const Buffers& inputs, const Buffers& outputs,
                const Maybe<Weights>& weights, const Maybe<State>& state,
                const std::vector<int64_t>& sizes) {
  using Clock = std::chrono::steady_clock;
  const std::vector<Binding> in = input_bindings(self, inputs),
                             out = output_bindings(self, outputs);
  const py::gil_scoped_release unlocked;
  const Clock::time_point before = Clock::now();
  self.run(method, in, out, pointer(weights), pointer(state), sizes);
  return std::chrono::duration<double>(Clock::now() - before).count();
}

py::object read_buffer(Executor& self, uint32_t index) {
  const std::optional<Binding> at = self.buffer(index);
  if (!at) return py::none();
  std::string copy(static_cast<size_t>(at->bytes), '\0');
  if (!copy.empty()) self.device().download(std::as_writable_bytes(std::span(copy)), *at);
  return py::bytes(copy);
}

void write_buffer(Executor& self, uint32_t index, const py::bytes& data) {
  self.write_buffer(index, std::as_bytes(std::span(static_cast<std::string_view>(data))));
}

}  // namespace

void bind_executor(py::module_& module) {
  py::class_<Weights, std::shared_ptr<Weights>> weights(module, "Weights", py::dynamic_attr());
  copy_as_itself(weights);
  module.def(
      "renamed", &renamed, py::arg("key"), py::arg("names"),
      "The checkpoint's name of a program's key: the longest beginning among `names` that it "
      "has is replaced.");
  module.def(
      "renaming_hint",
      [](const std::vector<std::string>& missing, const std::vector<std::string>& present) {
        return renaming_hint(missing, {present.begin(), present.end()});
      },
      py::arg("missing"), py::arg("present"),
      "A sentence that names the renaming which would find all missing keys, or nothing.");
  weights
      .def_static(
          "from_file",
          [](std::shared_ptr<Program> program, std::shared_ptr<Device> device,
             const std::filesystem::path& path, bool check_nan, bool copy, KeyNames names,
             const std::optional<py::function>& progress) {
            return load_weights(std::move(program), std::move(device), open_checkpoint(path),
                                check_nan, copy, std::move(names), progress);
          },
          py::arg("program"), py::arg("device"), py::arg("path"), py::arg("check_nan") = false,
          py::arg("copy") = false, py::arg("names") = KeyNames(), py::arg("progress") = py::none(),
          "progress is called as (done, total) with bytes of weights, whenever one was prepared.")
      .def_static(
          "from_memory",
          [](std::shared_ptr<Program> program, std::shared_ptr<Device> device,
             const py::dict& tensors, bool check_nan, bool copy, KeyNames names,
             const std::optional<py::function>& progress) {
            return load_weights(std::move(program), std::move(device), held_tensors(tensors),
                                check_nan, copy, std::move(names), progress);
          },
          py::arg("program"), py::arg("device"), py::arg("tensors"), py::arg("check_nan") = false,
          py::arg("copy") = false, py::arg("names") = KeyNames(), py::arg("progress") = py::none(),
          "tensors: name -> (dtype, shape, address, owner); the elements at address are dense.")
      .def_static("from_prepared", &from_prepared, py::arg("program"), py::arg("device"),
                  py::arg("persistent"), py::arg("weights"), "What `prepared` returned.")
      .def("prepared", &prepared,
           "(persistent memory, [(buffer, bytes)]): what the methods read, as init left it, for a "
           "device of the same kind.")
      .def("pack", &pack, py::arg("path"), py::arg("checkpoint") = py::none(),
           py::arg("names") = KeyNames(), py::arg("checked_nan") = false,
           "Writes what the methods read, as init left it, to a file that from_file takes.")
      .def_property_readonly(
          "note", &Weights::note,
          "Why packed weights had to be prepared anew; empty where they had not.")
      .def("check", &Weights::check_now,
           "Raises Error when a file whose tensors are used where they lie was changed in place.")
      .def_property_readonly("in_place", &Weights::in_place,
                             "Whether tensors of the checkpoint are used where they lie.")
      .def_property_readonly("extra", &Weights::extra,
                             "Tensors of the checkpoint that the program does not use.");
  module.def("watch_files", &watch_files, py::arg("memory"),
             "memory: (address, bytes) of what others have mapped. What check_files takes, to be "
             "dropped before the memory is.");
  module.def("check_files", &check_files, py::arg("watched"),
             "Raises Error when a file was changed in place since it was watched.");
  py::class_<Executor, std::shared_ptr<Executor>>(module, "Executor")
      .def(py::init([](std::shared_ptr<Program> program, std::shared_ptr<Device> device) {
             return std::make_shared<Executor>(std::move(program), std::move(device));
           }),
           py::arg("program"), py::arg("device"))
      .def_property("own_state", &Executor::own_state, &Executor::set_own_state,
                    "The State of runs that are given none; None before the first.")
      .def_property_readonly(
          "ranks_device",
          [](const Executor& self) -> std::shared_ptr<Device> {
            const Device& device = self.device();
            if (device.rank_count() == 1 || device.synchronous()) return nullptr;
            return self.shared_device();
          },
          "What ranks with memory of their own run on, where buffers for them lie; None: there are "
          "none.")
      .def("method_index", &Executor::method_index, py::arg("name"))
      .def("run", &run, py::arg("method"), py::arg("inputs"), py::arg("outputs"),
           py::arg("weights"), py::arg("state") = py::none(),
           py::arg("sizes") = std::vector<int64_t>{})
      .def("run_at", &run_at, py::arg("method"), py::arg("inputs"), py::arg("outputs"),
           py::arg("weights"), py::arg("queue"),
           "Runs over tensors at addresses of the device, which must fit the method's specs, in a "
           "stream of their library's. Waits only if the method can fail.")
      .def("observe", &observe, py::arg("method"), py::arg("inputs"), py::arg("outputs"),
           py::arg("weights"), py::arg("after"), py::arg("state") = py::none(),
           py::arg("sizes") = std::vector<int64_t>{})
      .def("time", &time_commands, py::arg("method"), py::arg("inputs"), py::arg("outputs"),
           py::arg("weights"), py::arg("state") = py::none(),
           py::arg("sizes") = std::vector<int64_t>{},
           "Runs one command at a time; how long each took, in seconds.")
      .def("implementations", &Executor::implementations, py::arg("method"),
           "The library that computes each command; empty: a kernel.")
      .def("time_run", &time_run, py::arg("method"), py::arg("inputs"), py::arg("outputs"),
           py::arg("weights"), py::arg("state") = py::none(),
           py::arg("sizes") = std::vector<int64_t>{},
           "Runs; how long it took by the host's clock, in seconds, without Python's part.")
      .def("read_buffer", &read_buffer, py::arg("index"),
           "The bytes of a program buffer, or None when it is not bound.")
      .def("write_buffer", &write_buffer, py::arg("index"), py::arg("data"),
           "Replaces the first bytes of a program buffer that commands write.");
}

}  // namespace npusim::python
