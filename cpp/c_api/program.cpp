// Programs of the C interface, and what they say of themselves.
#include "cpp/runtime/program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cpp/c_api/objects.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/sized_program.h"

namespace npusim::c_api {
namespace {

TensorFacts facts(Texts& texts, std::string_view name, DType dtype, std::vector<int64_t> shape) {
  TensorFacts made{
      .name = texts.add(name), .shape = std::move(shape), .dims = {}, .dtype = dtype, .bytes = 0};
  for (const int64_t extent : made.shape) made.dims.push_back(texts.add(std::to_string(extent)));
  made.bytes = dense_bytes(made.shape, dtype);
  return made;
}

// `first`: which number the first of the specs has among those of the method.
std::vector<TensorFacts> specs_facts(Texts& texts, const std::vector<TensorSpec>& specs,
                                     const MethodSizes& sizes, size_t first) {
  std::vector<TensorFacts> made;
  for (const TensorSpec& spec : specs) {
    made.push_back(facts(texts, spec.name, spec.dtype, spec.shape));
  }
  for (const SymbolicDim& dim : sizes.dims) {
    if (dim.spec < first || dim.spec - first >= made.size()) continue;
    made[dim.spec - first].dims[dim.axis] = texts.add(size_text(sizes, dim.step));
  }
  return made;
}

MethodFacts method_facts(Texts& texts, const Method& method) {
  MethodFacts made{
      .name = texts.add(method.name),
      .inputs = specs_facts(texts, method.inputs, method.sizes, 0),
      .outputs = specs_facts(texts, method.outputs, method.sizes, method.inputs.size()),
      .symbols = {}};
  for (const Symbol& symbol : method.sizes.symbols) made.symbols.push_back(texts.add(symbol.name));
  return made;
}

// Running needs no metadata: a program whose own is unsound has states without names, and who asks
// for one by name is told why.
std::vector<StateTensor> named_states(const Program& program) {
  if (program.state_bytes == 0) return {};
  try {
    return read_metadata(program).states;
  } catch (const Error&) {
    return {};
  }
}

template <typename Items>
const auto& at(const Items& items, size_t index, const char* what) {
  if (index < items.size()) return items[index];
  throw Error(ErrorCode::kInput, "there is no " + std::string(what) + " " + std::to_string(index) +
                                     "; there are " + std::to_string(items.size()));
}

const std::vector<TensorFacts>& facts_of(const ProgramObject& held, size_t method,
                                         npusim_side side) {
  held.method(method);
  const MethodFacts& facts = held.methods[method];
  specs_of(held.method(method), side);  // refuses another side
  return side == NPUSIM_INPUT ? facts.inputs : facts.outputs;
}

void show(const TensorFacts& tensor, npusim_tensor_info* info) {
  write_struct(info,
               {.struct_size = 0,
                .name = tensor.name,
                .shape = tensor.shape.data(),
                .dims = tensor.dims.data(),
                .rank = tensor.shape.size(),
                .bytes = static_cast<size_t>(tensor.bytes),
                .dtype = static_cast<npusim_dtype>(tensor.dtype),
                .reserved = 0},
               "npusim_tensor_info");
}

}  // namespace

ProgramObject::ProgramObject(std::shared_ptr<const Program> given)
    : program(std::move(given)),
      target(texts.add(program->target)),
      metadata(texts.add(program->metadata)) {
  for (const Method& method : program->methods) methods.push_back(method_facts(texts, method));
  for (const WeightSpec& spec : program->weights) {
    weights.push_back(facts(texts, spec.keys.front(), spec.dtype, spec.shape));
  }
  for (const StateTensor& state : named_states(*program)) {
    states.push_back(facts(texts, state.name, state.dtype, state.shape));
  }
  for (const Kernel& kernel : program->kernels) kernels.push_back(texts.add(kernel.name));
  for (const NodeInfo& node : program->nodes) {
    nodes.push_back({texts.add(node.name), texts.add(node.op), texts.add(node.source)});
  }
}

const Method& ProgramObject::method(size_t index) const {
  return at(program->methods, index, "method");
}

const std::vector<TensorSpec>& specs_of(const Method& method, npusim_side side) {
  if (side == NPUSIM_INPUT) return method.inputs;
  if (side == NPUSIM_OUTPUT) return method.outputs;
  throw Error(ErrorCode::kInput, "a side is NPUSIM_INPUT or NPUSIM_OUTPUT");
}

}  // namespace npusim::c_api

using namespace npusim;
using namespace npusim::c_api;

void npusim_program_free(npusim_program* program) {
  free_handle(program);
}

npusim_status npusim_program_open(const char* path, npusim_program** program) {
  return guarded([&] {
    require(program, "program");
    give(program, std::make_shared<ProgramObject>(Program::open(path_argument(path))));
  });
}

npusim_status npusim_program_from_memory(const void* data, size_t bytes, npusim_program** program) {
  return guarded([&] {
    require(program, "program");
    const auto image = elements(static_cast<const std::byte*>(data), bytes, "data");
    give(program, std::make_shared<ProgramObject>(Program::from_bytes(image)));
  });
}

npusim_status npusim_program_get_info(npusim_program* handle, npusim_program_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    write_struct(info,
                 {.struct_size = 0,
                  .target = held->target,
                  .metadata = held->metadata,
                  .fingerprint = held->program->fingerprint,
                  .method_count = held->methods.size(),
                  .weight_count = held->weights.size(),
                  .state_count = held->states.size(),
                  .state_bytes = held->program->state_bytes,
                  .persistent_bytes = held->program->persistent_bytes,
                  .declared_bytes = declared_memory(*held->program).total()},
                 "npusim_program_info");
  });
}

npusim_status npusim_program_find_method(npusim_program* handle, const char* name, size_t* method) {
  return guarded([&] {
    const auto held = object(handle);
    require(method, "method");
    *method = method_index(*held->program, text_or_empty(name));
  });
}

npusim_status npusim_program_get_method(npusim_program* handle, size_t index,
                                        npusim_method_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    const Method& method = held->method(index);
    write_struct(info,
                 {.struct_size = 0,
                  .name = held->methods[index].name,
                  .input_count = method.inputs.size(),
                  .output_count = method.outputs.size(),
                  .symbol_count = method.sizes.symbols.size(),
                  .command_count = method.commands.size(),
                  .arena_bytes = method.arena_bytes},
                 "npusim_method_info");
  });
}

npusim_status npusim_program_find_tensor(npusim_program* handle, size_t method, npusim_side side,
                                         const char* name, size_t* index) {
  return guarded([&] {
    const auto held = object(handle);
    require(index, "index");
    *index = spec_index(specs_of(held->method(method), side), text(name, "name"));
  });
}

npusim_status npusim_program_get_tensor(npusim_program* handle, size_t method, npusim_side side,
                                        size_t index, npusim_tensor_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    show(at(facts_of(*held, method, side), index, "tensor"), info);
  });
}

npusim_status npusim_program_get_symbol(npusim_program* handle, size_t method, size_t index,
                                        npusim_symbol* symbol) {
  return guarded([&] {
    const auto held = object(handle);
    const Symbol& found = at(held->method(method).sizes.symbols, index, "symbol");
    write_struct(symbol,
                 {.struct_size = 0,
                  .name = held->methods[method].symbols[index],
                  .low = found.low,
                  .high = found.high},
                 "npusim_symbol");
  });
}

npusim_status npusim_program_get_command(npusim_program* handle, size_t method, size_t index,
                                         npusim_command_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    const Command& command = at(held->method(method).commands, index, "command");
    const ProgramObject::Node& node = held->nodes[command.node];
    write_struct(info,
                 {.struct_size = 0,
                  .kernel = held->kernels[command.kernel],
                  .node = node.name,
                  .op = node.op,
                  .source = node.source},
                 "npusim_command_info");
  });
}

npusim_status npusim_program_get_weight(npusim_program* handle, size_t index,
                                        npusim_tensor_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    show(at(held->weights, index, "weight"), info);
  });
}

npusim_status npusim_program_get_state(npusim_program* handle, size_t index,
                                       npusim_tensor_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    show(at(held->states, index, "state"), info);
  });
}

npusim_status npusim_program_bind(npusim_program* handle, size_t index,
                                  const int64_t* const* shapes, const size_t* ranks,
                                  size_t input_count, int64_t* sizes, size_t size_count) {
  return guarded([&] {
    const auto held = object(handle);
    const Method& method = held->method(index);
    const auto given = elements(shapes, input_count, "shapes");
    elements(ranks, input_count, "ranks");
    std::vector<Shape> of_inputs;
    for (size_t i = 0; i < given.size(); ++i) {
      of_inputs.push_back(checked_shape(given[i], ranks[i]));
    }
    const std::vector<int64_t> found = symbols_of(method, of_inputs);
    const auto out = elements(sizes, size_count, "sizes");
    if (out.size() != found.size()) {
      throw Error(ErrorCode::kInput, "the method has " + std::to_string(found.size()) +
                                         " symbols, there is room for " +
                                         std::to_string(out.size()));
    }
    std::copy(found.begin(), found.end(), out.begin());
  });
}

npusim_status npusim_program_shape_at(npusim_program* handle, size_t index, npusim_side side,
                                      size_t tensor, const int64_t* sizes, size_t size_count,
                                      int64_t* shape, size_t rank) {
  return guarded([&] {
    const auto held = object(handle);
    held->method(index);
    const auto values = elements(sizes, size_count, "sizes");
    const bool fixed = held->method(index).sizes.symbols.empty() && values.empty();
    const auto sized = fixed ? held->program : at_sizes(held->program, index, values);
    const Method& method = fixed ? sized->methods[index] : sized->methods.front();
    const TensorSpec& spec = at(specs_of(method, side), tensor, "tensor");
    const auto out = elements(shape, rank, "shape");
    if (spec.shape.size() != out.size()) {
      throw Error(ErrorCode::kInput, "the rank is " + std::to_string(spec.shape.size()) + ", not " +
                                         std::to_string(out.size()));
    }
    std::copy(spec.shape.begin(), spec.shape.end(), out.begin());
  });
}
