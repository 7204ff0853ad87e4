// The records of a .npubin file as they stand there (docs/npubin.md, "Sections"), and how they are
// taken from a section: one by one, each fault with its place in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "cpp/runtime/container.h"

namespace npusim {

struct ProgramRecord {
  uint32_t target, ranks;
  int64_t persistent_bytes, state_bytes;
};
struct KernelRecord {
  uint32_t name, schema, image, reserved;
};
struct BufferRecord {
  uint32_t kind, name;
  int64_t bytes, offset;
};
struct MethodRecord {
  uint32_t name, commands, inputs, outputs;
  int64_t arena_bytes;
};
struct CommandRecord {
  uint32_t kernel, node, params, operands, reserved[4];
};
struct OperandRecord {
  uint32_t buffer, access;
  int64_t offset;
};
struct SpecRecord {
  uint32_t name, buffer, dtype, rank;
};
struct WeightRecord {
  uint32_t buffer, dtype, rank, keys;
};
struct NodeRecord {
  uint32_t name, op, source, reserved;
};
struct SymbolRecord {
  uint32_t name, reserved;
  int64_t low, high;
};
struct ExpressionRecord {
  uint32_t op, a, b, reserved;
  int64_t value;
};
struct ShapesRecord {
  uint32_t method, symbols, steps, dims, patches, reserved;
};
struct SymbolicDimRecord {
  uint32_t spec, axis, step, reserved;
};
struct PatchRecord {
  uint32_t command, kind, at, step;
};
struct SpecializedRecord {
  uint32_t kernel, params, image, reserved;
};
struct WeightPartRecord {
  uint32_t weight, axis, parts, reserved;
};
static_assert(sizeof(WeightPartRecord) == 16);
static_assert(sizeof(SymbolRecord) == 24 && sizeof(ExpressionRecord) == 24);
static_assert(sizeof(ShapesRecord) == 24 && sizeof(SymbolicDimRecord) == 16);
static_assert(sizeof(PatchRecord) == 16 && sizeof(SpecializedRecord) == 16);
static_assert(sizeof(ProgramRecord) == 24 && sizeof(KernelRecord) == 16);
static_assert(sizeof(BufferRecord) == 24 && sizeof(MethodRecord) == 24);
static_assert(sizeof(CommandRecord) == 32 && sizeof(OperandRecord) == 16);
static_assert(sizeof(SpecRecord) == 16 && sizeof(WeightRecord) == 16 && sizeof(NodeRecord) == 16);

inline constexpr uint32_t kNoImage = 0xFFFFFFFF;

// The records of a section, consumed from front to back.
template <typename Record>
class Rows {
 public:
  explicit Rows(const Chunk& chunk) : chunk_(chunk) {
    if (chunk.bytes.size() % sizeof(Record) != 0) {
      chunk.refuse(0, "its size is no multiple of " + std::to_string(sizeof(Record)));
    }
  }
  size_t left() const { return (chunk_.bytes.size() - at_) / sizeof(Record); }
  // Verifies that `count` more records exist, so that memory may be reserved for them.
  void require(size_t count) const {
    if (count > left()) {
      chunk_.refuse(at_, std::to_string(count) + " records are asked for, " +
                             std::to_string(left()) + " are left");
    }
  }
  Record next() {
    require(1);
    Record record;
    std::memcpy(&record, &chunk_.bytes[at_], sizeof record);
    at_ += sizeof record;
    return record;
  }
  // For a fault in the record taken last.
  [[noreturn]] void refuse(const std::string& why) const {
    chunk_.refuse(at_ - sizeof(Record), why);
  }
  // One of `items`, which a number in the record taken last tells.
  template <typename Items>
  auto pick(const Items& items, uint32_t index, const char* what) const {
    if (index >= items.size()) {
      refuse(std::string(what) + " " + std::to_string(index) + " does not exist; there are " +
             std::to_string(items.size()));
    }
    return items[index];
  }
  void require_zero(uint32_t reserved) const {
    if (reserved != 0) refuse("a reserved field is not zero");
  }
  void finish() const {
    if (left() != 0) chunk_.refuse(at_, "this record belongs to nothing");
  }

 private:
  const Chunk& chunk_;
  size_t at_ = 0;
};

}  // namespace npusim
