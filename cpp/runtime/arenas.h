// Where the buffers live that neither the caller nor the weights provide.
#pragma once

#include <memory>

#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"

namespace npusim {

// The program's constants as the device reads them: where they lie, if it can.
std::shared_ptr<Memory> constants_on(Device& device, std::shared_ptr<const Program> program);

// Memory for all buffers of a kind that a program gives offsets: where the host neither reads nor
// writes (temps, and weights that init has prepared) in what only the device reaches. Zeroed.
std::shared_ptr<Memory> arena_on(Device& device, BufferKind kind, int64_t bytes);

// Binds every buffer of `kind` at its offset in `arena`, but for those of methods whose arena is
// larger.
void bind_arena(CommandList& list, const Program& program, BufferKind kind, const Memory& arena);

}  // namespace npusim
