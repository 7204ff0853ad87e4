// The command by which ranks exchange values: y[rank] = x of that rank, on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cpp/runtime/program.h"

namespace npusim {

inline constexpr std::string_view kAllGather = "all_gather";
inline constexpr std::string_view kAllGatherSchema = "bytes:i64 ranks:i64";

struct AllGather {
  Operand from, to;
  int64_t bytes;  // of each rank
};

// Whether a command is one.
bool is_all_gather(const Program& program, const Command& command);
// Throws Error(kFormat) that names the command for one that leaves its operands, lies in its own
// way, or is of other ranks than `ranks`; Error(kVersion) for parameters of another npusim.
AllGather all_gather_of(const Program& program, const Method& method, const Command& command,
                        size_t ranks);

}  // namespace npusim
