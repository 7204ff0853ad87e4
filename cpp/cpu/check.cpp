#include "cpp/cpu/check.h"

#include <optional>
#include <string>
#include <vector>

#include "cpp/cpu/aliasing.h"
#include "cpp/cpu/isa.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"

namespace npusim::cpu {

namespace {

// Buffers of one arena have one number, each other buffer its own: the executor keeps what callers
// bind apart.
uint32_t space_of(BufferKind kind, uint32_t buffer) {
  switch (kind) {
    case BufferKind::kTemp:
    case BufferKind::kConstant:
    case BufferKind::kPersistent:
    case BufferKind::kState:
      return static_cast<uint32_t>(kind);
    default:
      return 8 + buffer;
  }
}

PlacedWalk place(const Buffer& buffer, const Operand& operand, const OperandWalk& walk) {
  return {.space = space_of(buffer.kind, operand.buffer),
          .address = buffer.offset + operand.offset,
          .before = operand.offset,
          .after = buffer.bytes - operand.offset,
          .walk = walk};
}

// Says which operands share memory though the kernel writes one of them; or is empty.
std::string shared_operands(std::span<const PlacedWalk> operands, size_t outputs,
                            const KernelEntry& kernel, const void* params) {
  const size_t reads = operands.size() - outputs;
  for (size_t w = reads; w < operands.size(); ++w) {
    for (size_t other = 0; other < w; ++other) {
      if (are_disjoint(operands[other], operands[w])) continue;
      const bool in_place =
          other < reads && kernel.in_place != nullptr &&
          kernel.in_place(params, static_cast<int>(other)) == static_cast<int>(w - reads);
      if (in_place && are_the_same(operands[other], operands[w])) continue;
      return "it writes operand " + std::to_string(w) + " where operand " + std::to_string(other) +
             " lies";
    }
  }
  return "";
}

// Steps that walks take; of operands without one, bytes.
int64_t visited(std::span<const OperandWalk> walks, std::span<const int64_t> bytes) {
  int64_t total = 0;
  for (size_t i = 0; i < walks.size(); ++i) {
    const int64_t steps = walks[i].bytes == 0 ? bytes[i] : walks[i].steps;
    if (__builtin_add_overflow(total, steps, &total)) return INT64_MAX;
  }
  return total;
}

}  // namespace

void refuse_command(const Program& program, const Method& method, const Command& command,
                    const std::string& reason) {
  const Kernel& kernel = program.kernels[command.kernel];
  throw Error(ErrorCode::kFormat, place_of(program, method, command) + ": kernel " +
                                      std::string(kernel.name) + " refuses it: " + reason);
}

int64_t check_command(const Program& program, const Method& method, const Command& command,
                      std::span<const Operand> operands, const KernelEntry& kernel,
                      const void* params) {
  std::vector<int64_t> after, before;
  for (const Operand& operand : operands) {
    before.push_back(operand.offset);
    after.push_back(program.buffers[operand.buffer].bytes - operand.offset);
  }
  std::vector<OperandWalk> walks(operands.size());
  if (const char* reason = kernel.check({params, after, before, walks})) {
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
  std::vector<PlacedWalk> placed;
  for (size_t i = 0; i < operands.size(); ++i) {
    placed.push_back(place(program.buffers[operands[i].buffer], operands[i], walks[i]));
  }
  const std::string shared = shared_operands(placed, outputs, kernel, params);
  if (!shared.empty()) refuse_command(program, method, command, shared);
  return kernel.work != nullptr ? kernel.work(params) : visited(walks, after);
}

std::optional<int64_t> check_command(const Program& program, const Method& method,
                                     const Command& command, std::span<const Operand> operands) {
  static const Isa isa = usable_isas().back();
  const Kernel& wanted = program.kernels[command.kernel];
  for (const KernelEntry* kernel : isa.kernels()) {
    if (kernel->name != wanted.name || kernel->schema != wanted.schema) continue;
    if (command.params.size() < kernel->params_size) {
      refuse_command(program, method, command, "its parameters are cut short");
    }
    return check_command(program, method, command, operands, *kernel, command.params.data());
  }
  return std::nullopt;
}

}  // namespace npusim::cpu
