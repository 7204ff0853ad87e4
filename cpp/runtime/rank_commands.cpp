#include "cpp/runtime/rank_commands.h"

#include <cstring>
#include <string>

#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"

namespace npusim {
namespace {

struct AllGatherParams {
  int64_t bytes, ranks;
};

struct AllReduceParams {
  int64_t elements, ranks;
  int32_t dtype, residual;
};

// A command whose operands are looked at.
struct Place {
  const Program& program;
  const Method& method;
  const Command& command;
  std::string_view kernel;

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::kFormat, place_of(program, method, command) + ": " +
                                        std::string(kernel) + " refuses it: " + why);
  }
  const Buffer& buffer(const Operand& operand) const { return program.buffers[operand.buffer]; }

  template <typename Params>
  Params params(std::string_view schema, size_t ranks) const {
    Params p{};
    if (program.kernels[command.kernel].schema != schema) {
      throw Error(ErrorCode::kVersion, "the program calls " + std::string(kernel) +
                                           " with other parameters. Compile the model again with "
                                           "the npusim that runs it.");
    }
    if (command.params.size() != sizeof p) refuse("its parameters' size");
    std::memcpy(&p, command.params.data(), sizeof p);
    if (p.ranks != static_cast<int64_t>(ranks)) {
      refuse("it is of " + std::to_string(p.ranks) + " ranks");
    }
    return p;
  }
  void require_operands(size_t count) const {
    if (command.operands.size() == count) return;
    refuse("it takes " + std::string(count == 2 ? "two" : "three") + " operands");
  }
  // That there are `count` times `bytes`.
  void require_room(const Operand& operand, int64_t bytes, int64_t count = 1) const {
    if (bytes >= 0 && bytes <= (buffer(operand).bytes - operand.offset) / count) return;
    refuse("it passes the end of an operand");
  }
  void require_apart(const Operand& from, int64_t read, const Operand& to, int64_t written) const {
    const Buffer &a = buffer(from), &b = buffer(to);
    if (to.access == Access::kRead) refuse("its result is read only");
    if (a.kind != b.kind || (a.kind != BufferKind::kTemp && &a != &b)) return;
    const int64_t x = a.offset + from.offset, y = b.offset + to.offset;
    if (x < y + written && y < x + read) refuse("its operands overlap");
  }
};

}  // namespace

bool is_all_gather(const Program& program, const Command& command) {
  return program.kernels[command.kernel].name == kAllGather;
}

AllGather all_gather_of(const Program& program, const Method& method, const Command& command,
                        size_t ranks) {
  const Place place{program, method, command, kAllGather};
  const auto p = place.params<AllGatherParams>(kAllGatherSchema, ranks);
  place.require_operands(2);
  const Operand &from = command.operands[0], &to = command.operands[1];
  place.require_room(from, p.bytes);
  place.require_room(to, p.bytes, p.ranks);
  place.require_apart(from, p.bytes, to, p.bytes * p.ranks);
  return {from, to, p.bytes};
}

AllReduce all_reduce_of(const Program& program, const Method& method, const Command& command,
                        size_t ranks) {
  const Place place{program, method, command, kAllReduce};
  const auto p = place.params<AllReduceParams>(kAllReduceSchema, ranks);
  const bool residual = p.residual != 0;
  place.require_operands(residual ? 3 : 2);
  if (p.dtype < 0 || p.dtype > static_cast<int32_t>(DType::kBool)) place.refuse("its dtype");
  int64_t bytes = 0;
  if (__builtin_mul_overflow(p.elements, dtype_size(static_cast<DType>(p.dtype)), &bytes)) {
    place.refuse("it passes the end of an operand");
  }
  for (const Operand& operand : command.operands) place.require_room(operand, bytes);
  const Operand& to = command.operands.back();
  for (const Operand& from : command.operands.first(command.operands.size() - 1)) {
    place.require_apart(from, bytes, to, bytes);
  }
  return {bytes, residual};
}

}  // namespace npusim
