#include "cpp/runtime/arenas.h"

namespace npusim {

std::shared_ptr<Memory> constants_on(Device& device, std::shared_ptr<const Program> program) {
  const std::span<const std::byte> constants = program->constants;
  const auto bytes = static_cast<int64_t>(constants.size());
  // Kernels only read constants: Program refuses commands that write them.
  auto* data = const_cast<std::byte*>(constants.data());
  if (auto shown = device.import_host({data, constants.size()}, std::move(program))) return shown;
  std::shared_ptr<Memory> memory = device.allocate(bytes);
  device.upload(*memory, 0, constants);
  return memory;
}

std::shared_ptr<Memory> arena_on(Device& device, BufferKind kind, int64_t bytes) {
  switch (kind) {
    case BufferKind::kTemp:
    case BufferKind::kPersistent:
      return device.allocate_private(bytes);
    case BufferKind::kState:  // sessions save, copy and restore it
      return device.allocate_growing(bytes);
    case BufferKind::kInput:
    case BufferKind::kOutput:
    case BufferKind::kWeight:
    case BufferKind::kConstant:
      break;
  }
  return device.allocate(bytes);
}

void bind_arena(CommandList& list, const Program& program, BufferKind kind, const Memory& arena) {
  const MemoryRange all = arena.range();
  for (uint32_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.kind != kind || buffer.offset + buffer.bytes > all.bytes) continue;
    list.bind(i, all.part(buffer.offset, buffer.bytes));
  }
}

}  // namespace npusim
