#include "cpp/cpu/work.h"

#include "cpp/cpu/check.h"

namespace npusim::cpu {

std::vector<std::optional<int64_t>> work_of(const Program& program, const Method& method) {
  std::vector<std::optional<int64_t>> work;
  for (const Command& command : method.commands) {
    work.push_back(check_command(program, method, command, command.operands));
  }
  return work;
}

}  // namespace npusim::cpu
