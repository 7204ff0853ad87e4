#include "cpp/runtime/program.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "cpp/cpu/work.h"
#include "cpp/python/bindings.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/sized_program.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

using Handle = std::shared_ptr<Program>;

// Everything in Program is const to its users; pybind11 wants to hold it without.
Handle held(std::shared_ptr<const Program> program) {
  return std::const_pointer_cast<Program>(std::move(program));
}

template <typename Numbers>
py::tuple numbers(const Numbers& values) {
  py::tuple out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = py::int_(values[i]);
  return out;
}

const Method& method_at(const Program& program, size_t index) {
  if (index >= program.methods.size()) throw py::index_error("no such method");
  return program.methods[index];
}

// (name, buffer, dtype, shape, alloc_shape) of each. `dims`: the symbolic ones of all specs of the
// method, of which `tensors` are those from `first` on; a symbolic size is its text.
py::list specs(const std::vector<TensorSpec>& tensors, const MethodSizes& sizes, size_t first) {
  py::list out;
  for (const TensorSpec& spec : tensors) {
    py::tuple shape = numbers(spec.shape);
    for (const SymbolicDim& dim : sizes.dims) {
      if (dim.spec == first + out.size()) shape[dim.axis] = size_text(sizes, dim.step);
    }
    out.append(py::make_tuple(spec.name, spec.buffer, dtype_name(spec.dtype), shape,
                              numbers(spec.alloc_shape)));
  }
  return out;
}

// (name, least, greatest) of each symbol.
py::list symbols(const Method& method) {
  py::list out;
  for (const Symbol& symbol : method.sizes.symbols) {
    out.append(py::make_tuple(symbol.name, symbol.low, symbol.high));
  }
  return out;
}

// (kernel, node, source) of each command.
py::list commands(const Program& program, const Method& method) {
  py::list out;
  for (const Command& command : method.commands) {
    const NodeInfo& node = program.nodes[command.node];
    out.append(py::make_tuple(program.kernels[command.kernel].name, node.name, node.source));
  }
  return out;
}

// (kind, bytes, offset, name) of each buffer.
py::list buffers(const Program& program) {
  py::list out;
  for (const Buffer& buffer : program.buffers) {
    out.append(
        py::make_tuple(static_cast<int>(buffer.kind), buffer.bytes, buffer.offset, buffer.name));
  }
  return out;
}

// (keys, dtype, shape) of each checkpoint tensor.
py::list weights(const Program& program) {
  py::list out;
  for (const WeightSpec& spec : program.weights) {
    out.append(py::make_tuple(py::tuple(py::cast(spec.keys)), dtype_name(spec.dtype),
                              numbers(spec.shape)));
  }
  return out;
}

}  // namespace

void bind_program(py::module_& module) {
  py::class_<Program, Handle> type(module, "Program");
  copy_as_itself(type);
  type.def_static(
          "open", [](const std::filesystem::path& path) { return held(Program::open(path)); },
          py::arg("path"))
      .def_static(
          "from_bytes",
          [](const py::bytes& bytes) {
            return held(Program::from_bytes(std::as_bytes(std::span(std::string_view(bytes)))));
          },
          py::arg("bytes"))
      .def(
          "to_bytes",
          [](const Program& self) {
            return py::bytes(reinterpret_cast<const char*>(self.image.data()), self.image.size());
          },
          "The `.npubin` image.")
      .def_property_readonly("target", [](const Program& self) { return self.target; })
      .def_property_readonly("metadata", [](const Program& self) { return self.metadata; })
      .def_readonly("fingerprint", &Program::fingerprint)
      .def_property_readonly("methods",
                             [](const Program& self) {
                               py::list names;
                               for (const Method& method : self.methods) names.append(method.name);
                               return names;
                             })
      .def(
          "inputs",
          [](const Program& self, size_t m) {
            const Method& method = method_at(self, m);
            return specs(method.inputs, method.sizes, 0);
          },
          py::arg("method"))
      .def(
          "outputs",
          [](const Program& self, size_t m) {
            const Method& method = method_at(self, m);
            return specs(method.outputs, method.sizes, method.inputs.size());
          },
          py::arg("method"))
      .def(
          "symbols", [](const Program& self, size_t m) { return symbols(method_at(self, m)); },
          py::arg("method"))
      .def(
          "work",
          [](const Program& self, std::optional<size_t> m) {
            return cpu::work_of(self, m ? method_at(self, *m) : self.init);
          },
          py::arg("method"),
          "Steps of each command at the greatest sizes, of method None those of init; None for "
          "kernels that the cpu does not have.")
      .def(
          "bind",
          [](const Program& self, size_t m, const std::vector<Shape>& shapes) {
            return numbers(symbols_of(method_at(self, m), shapes));
          },
          py::arg("method"), py::arg("shapes"),
          "The values of a method's symbols that shapes of all its inputs imply.")
      .def(
          "specs_at",
          [](const Handle& self, size_t m, const std::vector<int64_t>& sizes) {
            const Method& method = method_at(*self, m);
            if (method.sizes.symbols.empty()) {
              return py::make_tuple(specs(method.inputs, {}, 0), specs(method.outputs, {}, 0));
            }
            const auto sized = at_sizes(self, m, sizes);
            const Method& at = sized->methods.front();
            return py::make_tuple(specs(at.inputs, {}, 0), specs(at.outputs, {}, 0));
          },
          py::arg("method"), py::arg("sizes"), "Inputs and outputs for values of the symbols.")
      .def(
          "commands",
          [](const Program& self, size_t m) { return commands(self, method_at(self, m)); },
          py::arg("method"))
      .def(
          "arena_bytes",
          [](const Program& self, size_t m) { return method_at(self, m).arena_bytes; },
          py::arg("method"))
      .def_property_readonly(
          "declared_bytes", [](const Program& self) { return declared_memory(self).total(); },
          "What a device's max_memory is compared with.")
      .def_property_readonly("buffers", &buffers)
      .def_property_readonly("weights", &weights)
      .def_readonly("persistent_bytes", &Program::persistent_bytes)
      .def_readonly("state_bytes", &Program::state_bytes);
}

}  // namespace npusim::python
