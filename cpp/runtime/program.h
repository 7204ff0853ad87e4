// A compiled program in memory: what docs/npubin.md specifies, parsed and validated. Owns the
// bytes (usually a memory map) that its spans point into. Immutable and shared between executors.
//
// After Program::open returns, every index, offset and size below is in range: nobody re-checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/runtime/sizes.h"
#include "kernels/shared/abi.h"

namespace npusim {

using abi::DType;

int64_t dtype_size(DType dtype);
std::string_view dtype_name(DType dtype);

enum class BufferKind : uint32_t {
  kInput = 0,       // bound by the caller at each run
  kOutput = 1,      // bound by the caller at each run, or allocated for it
  kTemp = 2,        // [offset, offset + bytes) of the method's arena
  kWeight = 3,      // a tensor of the checkpoint, as it is there
  kConstant = 4,    // [offset, offset + bytes) of the constant section
  kPersistent = 5,  // [offset, …) of the weight arena: written by init, read by all methods
  kState = 6,       // [offset, …) of the state arena: survives from run to run
};

struct Buffer {
  BufferKind kind;
  int64_t bytes;
  int64_t offset;         // for kinds that live in an arena or section; 64-byte aligned
  std::string_view name;  // for messages; may be empty
};

enum class Access : uint32_t { kRead = 0, kWrite = 1, kReadWrite = 2 };

// `bytes` from `offset` on is what the kernel may touch; `offset` itself may lie anywhere inside
// the buffer because strides can be negative.
struct Operand {
  uint32_t buffer;
  Access access;
  int64_t offset;
};

struct Command {
  uint32_t kernel;  // index into Program::kernels
  uint32_t node;    // index into Program::nodes, for messages and profiles
  std::span<const std::byte> params;
  std::span<const Operand> operands;
};

// Device code of a kernel that has its parameters as constants.
struct Specialized {
  std::span<const std::byte> params, image;
};

struct Kernel {
  std::string_view name;
  std::string_view schema;           // abi::XxxParams::kSchema the compiler packed for
  std::span<const std::byte> image;  // device code; empty: built into the backend, or as follows
  std::span<const Specialized> specialized = {};  // for commands whose parameters depend on sizes
};

// A tensor as the caller sees it.
struct TensorSpec {
  std::string_view name;
  uint32_t buffer;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> alloc_shape;  // what the device buffer holds: shape, padded by the target
};

struct Method {
  std::string_view name;
  std::vector<Command> commands;
  std::vector<TensorSpec> inputs, outputs;
  int64_t arena_bytes;     // of its kTemp buffers
  MethodSizes sizes = {};  // what of the above depends on the call; it has the greatest sizes there
};

// Part `rank * parts / ranks` of as many equal ones along an axis; no parts: all of it.
struct WeightPart {
  uint32_t axis = 0, parts = 0;
};

// A tensor the checkpoint must have, and the kWeight buffer that shows it, or a rank's part of it.
struct WeightSpec {
  std::vector<std::string_view> keys;  // any one of them (tied weights); the first is canonical
  uint32_t buffer;
  DType dtype;
  std::vector<int64_t> shape;  // of what the buffer shows
  WeightPart part = {};
};

// A graph node a command came from.
struct NodeInfo {
  std::string_view name, op, source;  // source: "module, file:line", may be empty
};

inline constexpr uint32_t kMostRanks = 64;

class Program {
 public:
  // Reads and validates a file. Throws Error(kIo, kFormat or kVersion).
  static std::shared_ptr<const Program> open(const std::filesystem::path& path);
  // Validates a copy of bytes in memory.
  static std::shared_ptr<const Program> from_bytes(std::span<const std::byte> bytes);

  std::span<const std::byte> image;  // the file; empty for a part made at run time
  std::string_view target;           // the backend that runs it: "cpu", "cuda", "null"
  std::string_view metadata;         // JSON for people and tools; running reads none of it
  std::string_view simulation;       // JSON for the timing model: machine and schedules; likewise
  uint64_t fingerprint = 0;          // of the file's bytes: tells programs apart, is no signature
  std::vector<Kernel> kernels;
  std::vector<Buffer> buffers;
  std::vector<Method> methods;  // what a caller can run; at least one
  Method init;                  // runs once over the weights; may have no commands
  std::vector<WeightSpec> weights;
  std::vector<NodeInfo> nodes;
  std::span<const std::byte> constants;  // 64-byte aligned
  int64_t persistent_bytes = 0, state_bytes = 0;
  uint32_t ranks = 1;  // that run it together, each over its parts of the weights

  Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

 private:
  friend class ProgramReader;
  friend class SizedProgram;
  std::shared_ptr<const void> storage_;  // the copy of the file that all views point into
};

// Index of a method by name; the first one for an empty name. Throws Error(kInput), with those
// there are.
size_t method_index(const Program& program, std::string_view name);
// The same of one of a method's inputs, or of its outputs.
size_t spec_index(std::span<const TensorSpec> specs, std::string_view name);

}  // namespace npusim
