// What the CPU's kernels prove about parameters, for whoever has the same parameters: backends
// that generate code from them ask before they do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cpp/runtime/program.h"
#include "kernels/cpu/kernel.h"

namespace npusim::cpu {

// Throws Error(kFormat) that names the command and its kernel.
[[noreturn]] void refuse_command(const Program& program, const Method& method,
                                 const Command& command, const std::string& reason);

// Proves that a command cannot touch memory outside its operands, nor write what it only reads, nor
// write an operand where another lies, but where its kernel works in place; `operands` are the
// command's, or the first of them where only those are its kernel's. Returns the command's work
// (KernelEntry::work). Throws Error(kFormat) that names the command.
int64_t check_command(const Program& program, const Method& method, const Command& command,
                      std::span<const Operand> operands, const KernelEntry& kernel,
                      const void* params);

// As that, with the kernel found by name; params are 8-byte aligned. A kernel that the CPU does not
// have with this schema proves nothing, is not refused, and its work is not known.
std::optional<int64_t> check_command(const Program& program, const Method& method,
                                     const Command& command, std::span<const Operand> operands);

}  // namespace npusim::cpu
