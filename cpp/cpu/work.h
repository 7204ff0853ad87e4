// The work that a program's methods ask for, known before anything runs: see KernelEntry::work.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cpp/runtime/program.h"

namespace npusim::cpu {

// Steps of each command of a method, at its greatest sizes; nothing for a kernel that the CPU does
// not have. Throws Error(kFormat) for a command that the CPU refuses.
std::vector<std::optional<int64_t>> work_of(const Program& program, const Method& method);

}  // namespace npusim::cpu
