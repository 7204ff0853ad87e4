// A method at the sizes of one call: which values its symbols have, and the static program that the
// method is then. Backends see such programs alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/runtime/program.h"

namespace npusim {

using Shape = std::vector<int64_t>;

// The values of a method's symbols that shapes of all its inputs imply; none for a static method.
// Throws Error(kInput) when a rank or a dimension does not fit: names the input, the dimension, its
// value, and what is possible there. The dimensions of static methods are not looked at.
std::vector<int64_t> symbols_of(const Method& method, std::span<const Shape> inputs);

// The program whose only method is `method` at these sizes: buffers of its inputs and outputs have
// the bytes of this call, temporaries their planned room. Throws Error(kInput) for no such method,
// values outside their bounds, or a dimension that passes the room planned for it.
std::shared_ptr<const Program> at_sizes(std::shared_ptr<const Program> program, size_t method,
                                        std::span<const int64_t> symbols);

// "batch = 3, seq = 17"; "" for a static method.
std::string sizes_text(const Method& method, std::span<const int64_t> symbols);

}  // namespace npusim
