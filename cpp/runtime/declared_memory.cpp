#include "cpp/runtime/declared_memory.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

void add(int64_t& total, int64_t bytes) {
  if (__builtin_add_overflow(total, bytes, &total)) total = INT64_MAX;
}

int64_t arguments_of(const Program& program, const Method& method) {
  int64_t bytes = 0;
  for (const std::span<const TensorSpec> specs :
       {std::span(method.inputs), std::span(method.outputs)}) {
    for (const TensorSpec& spec : specs) add(bytes, program.buffers[spec.buffer].bytes);
  }
  return bytes;
}

// "weights 12, arena 64": the parts that there are, the greatest first.
std::string parts_text(const DeclaredMemory& memory) {
  std::pair<int64_t, const char*> parts[] = {
      {memory.weights, "weights"},     {memory.prepared, "prepared weights"},
      {memory.constants, "constants"}, {memory.state, "state"},
      {memory.arena, "arena"},         {memory.arguments, "inputs and outputs"}};
  std::stable_sort(std::begin(parts), std::end(parts),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [bytes, name] : parts) {
    if (bytes == 0) break;
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(bytes);
  }
  return text;
}

}  // namespace

int64_t DeclaredMemory::total() const {
  int64_t bytes = 0;
  for (const int64_t part : {weights, prepared, constants, state, arena, arguments}) {
    add(bytes, part);
  }
  return bytes;
}

DeclaredMemory declared_memory(const Program& program) {
  DeclaredMemory memory;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.kind == BufferKind::kWeight) add(memory.weights, buffer.bytes);
  }
  memory.prepared = program.persistent_bytes;
  memory.constants = static_cast<int64_t>(program.constants.size());
  memory.state = program.state_bytes;
  memory.arena = program.init.arena_bytes;
  for (const Method& method : program.methods) {
    memory.arena = std::max(memory.arena, method.arena_bytes);
    memory.arguments = std::max(memory.arguments, arguments_of(program, method));
  }
  return memory;
}

namespace {

void check_memory(const Device& device, const Program& program) {
  const int64_t most = device.max_memory();
  if (most == 0) return;
  const DeclaredMemory memory = declared_memory(program);
  int64_t total = 0;  // as much on each rank
  for (uint32_t rank = 0; rank < program.ranks; ++rank) add(total, memory.total());
  if (total <= most) return;
  throw Error(ErrorCode::kLimit, "the program declares " + std::to_string(total) +
                                     " bytes of memory (" + parts_text(memory) +
                                     "), and max_memory is " + std::to_string(most));
}

}  // namespace

std::shared_ptr<Device> admit(std::shared_ptr<Device> device, const Program& program) {
  const auto ranks = static_cast<int>(program.ranks);
  if (device->rank_count() != ranks) {
    if (device->rank_count() != 1) {
      throw Error(ErrorCode::kInput, "the program is of " + std::to_string(ranks) +
                                         " ranks, and the device has " +
                                         std::to_string(device->rank_count()));
    }
    check_memory(*device, program);
    return device->ranks(ranks);
  }
  check_memory(*device, program);
  return device;
}

}  // namespace npusim
