#include "cpp/runtime/all_gather.h"

#include <cstring>
#include <string>

#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"

namespace npusim {
namespace {

struct AllGatherParams {
  int64_t bytes, ranks;
};

[[noreturn]] void refuse(const Program& program, const Method& method, const Command& command,
                         const std::string& why) {
  throw Error(ErrorCode::kFormat, place_of(program, method, command) + ": " +
                                      std::string(kAllGather) + " refuses it: " + why);
}

bool overlap(const Buffer& a, const Buffer& b, const Operand& from, const Operand& to,
             const AllGatherParams& p) {
  if (a.kind != b.kind || (a.kind != BufferKind::kTemp && &a != &b)) return false;
  const int64_t x = a.offset + from.offset, y = b.offset + to.offset;
  return x < y + p.bytes * p.ranks && y < x + p.bytes;
}

}  // namespace

bool is_all_gather(const Program& program, const Command& command) {
  return program.kernels[command.kernel].name == kAllGather;
}

AllGather all_gather_of(const Program& program, const Method& method, const Command& command,
                        size_t ranks) {
  AllGatherParams p{};
  if (program.kernels[command.kernel].schema != kAllGatherSchema) {
    throw Error(ErrorCode::kVersion,
                "the program calls all_gather with other parameters. Compile "
                "the model again with the npusim that runs it.");
  }
  if (command.params.size() != sizeof p) refuse(program, method, command, "its parameters' size");
  std::memcpy(&p, command.params.data(), sizeof p);
  const auto count = static_cast<int64_t>(ranks);
  if (p.ranks != count) {
    refuse(program, method, command, "it is of " + std::to_string(p.ranks) + " ranks");
  }
  if (command.operands.size() != 2) refuse(program, method, command, "it takes two operands");
  const Operand &from = command.operands[0], &to = command.operands[1];
  const Buffer &x = program.buffers[from.buffer], &y = program.buffers[to.buffer];
  if (p.bytes < 0 || p.bytes > x.bytes - from.offset || p.bytes > (y.bytes - to.offset) / count) {
    refuse(program, method, command, "it passes the end of an operand");
  }
  if (to.access == Access::kRead) refuse(program, method, command, "its result is read only");
  if (overlap(x, y, from, to, p)) refuse(program, method, command, "its operands overlap");
  return {from, to, p.bytes};
}

}  // namespace npusim
