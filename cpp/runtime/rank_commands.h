// The commands by which ranks exchange values: all_gather, y[rank] = x of that rank on every rank,
// and all_reduce, y = the sum of all ranks' x (and of a residual), which not every device has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cpp/runtime/program.h"

namespace npusim {

inline constexpr std::string_view kAllGather = "all_gather";
inline constexpr std::string_view kAllGatherSchema = "bytes:i64 ranks:i64";
inline constexpr std::string_view kAllReduce = "all_reduce";
inline constexpr std::string_view kAllReduceSchema =
    "elements:i64 ranks:i64 dtype:i32 residual:i32";

struct AllGather {
  Operand from, to;
  int64_t bytes;  // of each rank
};

struct AllReduce {
  int64_t bytes;  // of x, the residual and y
  bool residual;
};

// Whether a command is an all_gather.
bool is_all_gather(const Program& program, const Command& command);
// Throws Error(kFormat) that names the command for one that leaves its operands, lies in its own
// way, or is of other ranks than `ranks`; Error(kVersion) for parameters of another npusim.
AllGather all_gather_of(const Program& program, const Method& method, const Command& command,
                        size_t ranks);
// Likewise.
AllReduce all_reduce_of(const Program& program, const Method& method, const Command& command,
                        size_t ranks);

}  // namespace npusim
