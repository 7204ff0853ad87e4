#include "cpp/runtime/arenas.h"

#include "cpp/runtime/borrowed_memory.h"

namespace npusim {

std::shared_ptr<Memory> constants_on(Device& device, std::shared_ptr<const Program> program) {
  const std::span<const std::byte> constants = program->constants;
  const auto bytes = static_cast<int64_t>(constants.size());
  if (device.shares_host_memory()) {
    // Kernels only read constants: Program refuses commands that write them.
    auto* data = const_cast<std::byte*>(constants.data());
    return std::make_shared<BorrowedMemory>(data, bytes, std::move(program));
  }
  std::shared_ptr<Memory> memory = device.allocate(bytes);
  device.upload(*memory, 0, constants);
  return memory;
}

void bind_arena(CommandList& list, const Program& program, BufferKind kind, std::byte* base) {
  for (uint32_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.kind == kind) list.bind(i, base + buffer.offset);
  }
}

}  // namespace npusim
