// Where the buffers live that neither the caller nor the weights provide.
#pragma once

#include <memory>

#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"

namespace npusim {

// The program's constants as the device reads them: in place where it shares the host's memory.
std::shared_ptr<Memory> constants_on(Device& device, std::shared_ptr<const Program> program);

// Binds every buffer of `kind` at its offset from `base`.
void bind_arena(CommandList& list, const Program& program, BufferKind kind, std::byte* base);

}  // namespace npusim
