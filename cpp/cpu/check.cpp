#include "cpp/cpu/check.h"

#include <string>
#include <vector>

#include "cpp/cpu/isa.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"

namespace npusim::cpu {

void refuse_command(const Program& program, const Method& method, const Command& command,
                    const std::string& reason) {
  const Kernel& kernel = program.kernels[command.kernel];
  throw Error(ErrorCode::kFormat, place_of(program, method, command) + ": kernel " +
                                      std::string(kernel.name) + " refuses it: " + reason);
}

void check_command(const Program& program, const Method& method, const Command& command,
                   std::span<const Operand> operands, const KernelEntry& kernel,
                   const void* params) {
  std::vector<int64_t> after, before;
  for (const Operand& operand : operands) {
    before.push_back(operand.offset);
    after.push_back(program.buffers[operand.buffer].bytes - operand.offset);
  }
  if (const char* reason = kernel.check({params, after, before})) {
    refuse_command(program, method, command, reason);
  }
  const size_t outputs =
      kernel.outputs == nullptr ? 1 : static_cast<size_t>(kernel.outputs(params));
  if (outputs > operands.size()) refuse_command(program, method, command, "operands are missing");
  for (const Operand& operand : operands.last(outputs)) {
    if (operand.access == Access::kRead) {
      refuse_command(program, method, command, "an operand it writes is declared as read only");
    }
  }
}

void check_command(const Program& program, const Method& method, const Command& command,
                   std::span<const Operand> operands) {
  static const Isa isa = usable_isas().back();
  const Kernel& wanted = program.kernels[command.kernel];
  for (const KernelEntry* kernel : isa.kernels()) {
    if (kernel->name != wanted.name || kernel->schema != wanted.schema) continue;
    if (command.params.size() < kernel->params_size) {
      refuse_command(program, method, command, "its parameters are cut short");
    }
    check_command(program, method, command, operands, *kernel, command.params.data());
  }
}

}  // namespace npusim::cpu
