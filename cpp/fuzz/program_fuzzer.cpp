// Fuzzes the .npubin loader: whatever the bytes, Program::from_bytes refuses them with an Error or
// returns a Program all of whose views, indices and ranges hold. Mutations keep the container
// sound most of the time, or the checksums would stop everything at the door.
#include <cstdint>
#include <cstdlib>

#include "cpp/fuzz/mutate_program.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/metadata.h"
#include "cpp/runtime/program.h"

namespace npusim {
namespace {

uint64_t sink;  // what is read ends here, so that no read is optimised away

void require(bool condition) {
  if (!condition) std::abort();
}

void touch(std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) sink += std::to_integer<uint64_t>(b);
}

void touch(std::string_view text) {
  touch(std::as_bytes(std::span(text)));
}

int64_t end_of(const Program& program, BufferKind kind) {
  switch (kind) {
    case BufferKind::kConstant:
      return static_cast<int64_t>(program.constants.size());
    case BufferKind::kPersistent:
      return program.persistent_bytes;
    case BufferKind::kState:
      return program.state_bytes;
    default:
      return int64_t{1} << 41;
  }
}

void walk_command(const Program& program, const Method& method, const Command& command) {
  touch(program.kernels.at(command.kernel).name);
  touch(program.nodes.at(command.node).name);
  touch(command.params);
  require(reinterpret_cast<uintptr_t>(command.params.data()) % 8 == 0);
  for (const Operand& operand : command.operands) {
    const Buffer& buffer = program.buffers.at(operand.buffer);
    require(operand.offset >= 0 && operand.offset <= buffer.bytes);
    if (buffer.kind == BufferKind::kTemp) {
      require(buffer.offset + buffer.bytes <= method.arena_bytes);
    }
    const bool fixed = buffer.kind == BufferKind::kInput || buffer.kind == BufferKind::kWeight ||
                       buffer.kind == BufferKind::kConstant;
    require(!fixed || operand.access == Access::kRead);
  }
}

void walk_specs(const Program& program, const std::vector<TensorSpec>& specs) {
  for (const TensorSpec& spec : specs) {
    int64_t bytes = dtype_size(spec.dtype);
    for (const int64_t dim : spec.alloc_shape) bytes *= dim;
    require(bytes == program.buffers.at(spec.buffer).bytes);
    require(spec.shape.size() == spec.alloc_shape.size());
    touch(spec.name);
  }
}

void walk_method(const Program& program, const Method& method) {
  touch(method.name);
  walk_specs(program, method.inputs);
  walk_specs(program, method.outputs);
  for (const Command& command : method.commands) walk_command(program, method, command);
}

// What the metadata says of states holds, or the reader refuses it.
void walk_states(const Program& program) {
  for (const StateTensor& state : read_metadata(program).states) {
    const Buffer& buffer = program.buffers.at(state.buffer);
    int64_t bytes = dtype_size(state.dtype);
    for (const int64_t dim : state.shape) bytes *= dim;
    require(buffer.kind == BufferKind::kState && bytes == buffer.bytes);
  }
}

void walk(const Program& program) {
  touch(program.target);
  touch(program.metadata);
  touch(program.constants);
  require(!program.methods.empty());
  for (const Kernel& kernel : program.kernels) touch(kernel.image);
  for (const Buffer& buffer : program.buffers) {
    touch(buffer.name);
    require(buffer.bytes >= 0 && buffer.offset >= 0);
    require(buffer.offset + buffer.bytes <= end_of(program, buffer.kind));
  }
  walk_method(program, program.init);
  for (const Method& method : program.methods) walk_method(program, method);
  for (const WeightSpec& weight : program.weights) touch(weight.keys.at(0));
  walk_states(program);
}

}  // namespace
}  // namespace npusim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    npusim::walk(*npusim::Program::from_bytes(std::as_bytes(std::span(data, size))));
  } catch (const npusim::Error&) {  // a refusal is an answer
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  return npusim::tests::mutate_program(data, size, max_size, seed);
}
