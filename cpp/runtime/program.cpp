// Reads the records of a .npubin file. The container around them is container.cpp, what must hold
// between them program_validate.cpp.
//
// Invariants of a Program that open or from_bytes returned
// 1. Every index, count and offset in it is in range; every string is UTF-8 without NUL.
// 2. A buffer lies inside the arena or section of its kind; a TEMP buffer lies inside the arena of
//    each method whose commands name it. An operand's offset lies inside its buffer (or is 0 when
//    the buffer is empty).
// 3. Commands write no INPUT, WEIGHT or CONSTANT; only init writes PERSISTENT, and init touches no
//    INPUT, OUTPUT or STATE. INPUT and OUTPUT buffers a method names are among its specs.
// 4. Every spec's and weight's buffer has exactly the bytes of its (allocated) shape; no product of
//    dimensions overflows.
// 5. Parameters are 8-byte aligned, constants and images start on a page of the file. What a
//    kernel does with its parameters is not known here: Device::encode checks it.
// 6. Views point into storage_; operands into a table beside it. Memory used is proportional to
//    the file, whatever its numbers say.
#include "cpp/runtime/program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <tuple>

#include "cpp/runtime/container.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/mapping.h"
#include "cpp/runtime/program_validate.h"
#include "cpp/runtime/utf8.h"

namespace npusim {
namespace {

struct DTypeInfo {
  std::string_view name;
  int64_t size;
};
constexpr std::array<DTypeInfo, 10> kDTypes = {{{"float32", 4},
                                                {"float16", 2},
                                                {"bfloat16", 2},
                                                {"float64", 8},
                                                {"int64", 8},
                                                {"int32", 4},
                                                {"int16", 2},
                                                {"int8", 1},
                                                {"uint8", 1},
                                                {"bool", 1}}};

// The records as they stand in the file.
struct ProgramRecord {
  uint32_t target, reserved;
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
  uint32_t kernel, node, params, operands, grid[3], reserved;
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
static_assert(sizeof(SymbolRecord) == 24 && sizeof(ExpressionRecord) == 24);
static_assert(sizeof(ShapesRecord) == 24 && sizeof(SymbolicDimRecord) == 16);
static_assert(sizeof(PatchRecord) == 16 && sizeof(SpecializedRecord) == 16);
static_assert(sizeof(ProgramRecord) == 24 && sizeof(KernelRecord) == 16);
static_assert(sizeof(BufferRecord) == 24 && sizeof(MethodRecord) == 24);
static_assert(sizeof(CommandRecord) == 32 && sizeof(OperandRecord) == 16);
static_assert(sizeof(SpecRecord) == 16 && sizeof(WeightRecord) == 16 && sizeof(NodeRecord) == 16);

constexpr uint32_t kNoImage = 0xFFFFFFFF;

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
  void finish() const {
    if (left() != 0) chunk_.refuse(at_, "this record belongs to nothing");
  }

 private:
  const Chunk& chunk_;
  size_t at_ = 0;
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::string_view> read_strings(const Chunk& chunk) {
  std::vector<std::string_view> strings;
  for (const auto blob : unpack_blobs(chunk, 1)) {
    const auto text = text_of(blob);
    if (!is_utf8(text)) chunk.refuse(0, "a string is not UTF-8");
    if (text.find('\0') != text.npos) chunk.refuse(0, "a string holds a NUL character");
    strings.push_back(text);
  }
  return strings;
}

bool is_identifier(std::string_view name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto legal = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && letter(name.front()) && std::all_of(name.begin(), name.end(), legal);
}

struct Storage {
  std::shared_ptr<const void> file;
  std::vector<Operand> operands;
  std::vector<Specialized> specialized;
};

// A page of a copied file: copies are aligned as maps are.
struct alignas(4096) Page {
  std::byte bytes[4096];
};

}  // namespace

int64_t dtype_size(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)].size;
}
std::string_view dtype_name(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)].name;
}

class ProgramReader {
 public:
  explicit ProgramReader(std::span<const std::byte> file)
      : sections_(file),
        strings_(read_strings(sections_[Section::kStrings])),
        images_(unpack_blobs(sections_[Section::kImages], 64)),
        params_(unpack_blobs(sections_[Section::kParams], 8)) {}

  // `owner` keeps the file's bytes alive.
  std::shared_ptr<const Program> read(std::shared_ptr<const void> owner) {
    auto storage = std::make_shared<Storage>();
    storage->file = std::move(owner);
    // Spans point into these: they must not move.
    storage->operands.reserve(operands_.left());
    storage->specialized.reserve(specialized_.left());
    storage_ = storage.get();
    auto program = std::make_shared<Program>();
    program->storage_ = std::move(storage);
    read_root(*program);
    read_kernels(*program);
    read_buffers(*program);
    read_methods(*program);
    read_weights(*program);
    read_nodes(*program);
    read_shapes(*program);
    finish();
    validate(*program);
    return program;
  }

 private:
  void read_root(Program& program) {
    const auto record = root_.next();
    require_zero(root_, record.reserved);
    program.target = string(root_, record.target);
    program.persistent_bytes = record.persistent_bytes;
    program.state_bytes = record.state_bytes;
    program.constants = sections_[Section::kConstants].bytes;
    const Chunk& metadata = sections_[Section::kMetadata];
    program.metadata = text_of(metadata.bytes);
    if (!is_utf8(program.metadata)) metadata.refuse(0, "it is not UTF-8");
    program.fingerprint = sections_.fingerprint();
  }

  void read_kernels(Program& program) {
    program.kernels.reserve(kernels_.left());
    while (kernels_.left() != 0) {
      const auto record = kernels_.next();
      require_zero(kernels_, record.reserved);
      Kernel kernel{string(kernels_, record.name), string(kernels_, record.schema), {}, {}};
      if (record.image != kNoImage) kernel.image = item(images_, record.image, kernels_, "image");
      program.kernels.push_back(kernel);
    }
    read_specialized(program);
  }

  void read_specialized(Program& program) {
    std::vector<Specialized>& codes = storage_->specialized;
    size_t before = 0;
    while (specialized_.left() != 0) {
      const auto record = specialized_.next();
      require_zero(specialized_, record.reserved);
      if (record.kernel < before || record.kernel >= program.kernels.size()) {
        specialized_.refuse("its kernel does not exist, or is out of order");
      }
      before = record.kernel;
      codes.push_back({item(params_, record.params, specialized_, "params"),
                       item(images_, record.image, specialized_, "image")});
      std::span<const Specialized>& own = program.kernels[record.kernel].specialized;
      own = {own.empty() ? &codes.back() : own.data(), own.size() + 1};
    }
  }

  void read_buffers(Program& program) {
    program.buffers.reserve(buffers_.left());
    while (buffers_.left() != 0) {
      const auto record = buffers_.next();
      if (record.kind > static_cast<uint32_t>(BufferKind::kState)) {
        buffers_.refuse("kind " + std::to_string(record.kind) + " is unknown");
      }
      program.buffers.push_back({static_cast<BufferKind>(record.kind), record.bytes, record.offset,
                                 string(buffers_, record.name)});
    }
  }

  void read_methods(Program& program) {
    program.init = read_method();
    program.methods.reserve(methods_.left());
    while (methods_.left() != 0) program.methods.push_back(read_method());
  }

  Method read_method() {
    const auto record = methods_.next();
    Method method;
    method.name = string(methods_, record.name);
    method.arena_bytes = record.arena_bytes;
    commands_.require(record.commands);
    method.commands.reserve(record.commands);
    for (uint32_t i = 0; i < record.commands; ++i) method.commands.push_back(read_command());
    method.inputs = read_specs(record.inputs);
    method.outputs = read_specs(record.outputs);
    return method;
  }

  Command read_command() {
    const auto record = commands_.next();
    require_zero(commands_, record.reserved);
    Command command{record.kernel,
                    record.node,
                    item(params_, record.params, commands_, "params"),
                    {},
                    {record.grid[0], record.grid[1], record.grid[2]}};
    operands_.require(record.operands);
    const size_t first = storage_->operands.size();
    for (uint32_t i = 0; i < record.operands; ++i) storage_->operands.push_back(read_operand());
    command.operands = std::span<const Operand>(storage_->operands).subspan(first);
    return command;
  }

  Operand read_operand() {
    const auto record = operands_.next();
    if (record.access > static_cast<uint32_t>(Access::kReadWrite)) {
      operands_.refuse("access " + std::to_string(record.access) + " is unknown");
    }
    return {record.buffer, static_cast<Access>(record.access), record.offset};
  }

  std::vector<TensorSpec> read_specs(uint32_t count) {
    specs_.require(count);
    std::vector<TensorSpec> specs;
    specs.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      const auto record = specs_.next();
      const DType dtype = dtype_of(specs_, record.dtype);
      auto shape = read_shape(specs_, record.rank);
      auto alloc_shape = read_shape(specs_, record.rank);
      specs.push_back({string(specs_, record.name), record.buffer, dtype, std::move(shape),
                       std::move(alloc_shape)});
    }
    return specs;
  }

  void read_weights(Program& program) {
    program.weights.reserve(weights_.left());
    while (weights_.left() != 0) {
      const auto record = weights_.next();
      WeightSpec weight{{}, record.buffer, dtype_of(weights_, record.dtype), {}};
      keys_.require(record.keys);
      weight.keys.reserve(record.keys);
      for (uint32_t i = 0; i < record.keys; ++i) {
        const uint32_t key = keys_.next();
        weight.keys.push_back(string(keys_, key));
      }
      weight.shape = read_shape(weights_, record.rank);
      program.weights.push_back(std::move(weight));
    }
  }

  void read_nodes(Program& program) {
    program.nodes.reserve(nodes_.left());
    while (nodes_.left() != 0) {
      const auto record = nodes_.next();
      require_zero(nodes_, record.reserved);
      program.nodes.push_back(
          {string(nodes_, record.name), string(nodes_, record.op), string(nodes_, record.source)});
    }
  }

  void read_shapes(Program& program) {
    uint32_t before = 0;  // init has none
    while (shapes_.left() != 0) {
      const auto record = shapes_.next();
      require_zero(shapes_, record.reserved);
      if (record.method <= before || record.method > program.methods.size()) {
        shapes_.refuse("its method does not exist, or is out of order");
      }
      before = record.method;
      Method& method = program.methods[record.method - 1];
      read_symbols(method.sizes, record.symbols);
      const SizeProver prover = read_steps(method.sizes, record.steps);
      read_dims(method, record.dims, prover);
      read_patches(method, record.patches);
    }
  }

  void read_symbols(MethodSizes& sizes, uint32_t count) {
    symbols_.require(count);
    sizes.symbols.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      const auto record = symbols_.next();
      require_zero(symbols_, record.reserved);
      const Symbol symbol{string(symbols_, record.name), record.low, record.high};
      if (!is_identifier(symbol.name)) {
        symbols_.refuse("a symbol's name is not made of letters, digits and '_'");
      }
      if (symbol.low < 0 || symbol.low >= symbol.high || symbol.high > kMaxBytes) {
        symbols_.refuse("its bounds are no range of sizes");
      }
      if (i > 0 && sizes.symbols.back().name >= symbol.name) {
        shapes_.refuse("its symbols are none, or not sorted by name");
      }
      sizes.symbols.push_back(symbol);
    }
    if (count == 0) shapes_.refuse("its symbols are none, or not sorted by name");
  }

  SizeProver read_steps(MethodSizes& sizes, uint32_t count) {
    expressions_.require(count);
    sizes.steps.reserve(count);
    SizeProver prover(sizes.symbols);
    for (uint32_t i = 0; i < count; ++i) {
      const auto record = expressions_.next();
      require_zero(expressions_, record.reserved);
      const SizeStep step{static_cast<SizeOp>(record.op), record.a, record.b, record.value};
      if (const auto wrong = prover.add(step)) expressions_.refuse(*wrong);
      sizes.steps.push_back(step);
    }
    return prover;
  }

  void read_dims(Method& method, uint32_t count, const SizeProver& prover) {
    MethodSizes& sizes = method.sizes;
    symbolic_dims_.require(count);
    sizes.dims.reserve(count);
    std::vector<std::optional<ToldSymbol>> told(sizes.symbols.size());
    for (uint32_t i = 0; i < count; ++i) {
      const auto record = symbolic_dims_.next();
      require_zero(symbolic_dims_, record.reserved);
      const bool rises =
          sizes.dims.empty() || sizes.dims.back().spec < record.spec ||
          (sizes.dims.back().spec == record.spec && sizes.dims.back().axis < record.axis);
      if (!rises) symbolic_dims_.refuse("the dimensions are not in order");
      const size_t inputs = method.inputs.size();
      if (record.spec >= inputs + method.outputs.size()) {
        symbolic_dims_.refuse("its tensor does not exist");
      }
      const bool given = record.spec < inputs;
      const TensorSpec& spec =
          given ? method.inputs[record.spec] : method.outputs[record.spec - inputs];
      if (record.axis >= spec.shape.size()) symbolic_dims_.refuse("its dimension does not exist");
      if (spec.shape[record.axis] != spec.alloc_shape[record.axis]) {
        symbolic_dims_.refuse("a symbolic dimension is padded");
      }
      require_step(symbolic_dims_, sizes, record.step);
      sizes.dims.push_back({record.spec, record.axis, record.step});
      const auto& linear = prover.linear(record.step);
      if (given && linear && linear->symbol >= 0 && linear->a > 0) {
        auto& teller = told[static_cast<size_t>(linear->symbol)];
        if (!teller) teller = ToldSymbol{record.spec, record.axis, linear->a, linear->b};
      }
    }
    for (const auto& teller : told) {
      if (!teller) shapes_.refuse("no dimension of an input tells one of its symbols");
      sizes.told.push_back(*teller);
    }
  }

  void read_patches(Method& method, uint32_t count) {
    std::vector<Patch>& patches = method.sizes.patches;
    patches_.require(count);
    patches.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      const auto record = patches_.next();
      const Patch patch{record.command, static_cast<PatchKind>(record.kind), record.at,
                        record.step};
      const auto key = [](const Patch& p) { return std::tuple(p.command, p.kind, p.at); };
      if (!patches.empty() && key(patches.back()) >= key(patch)) {
        patches_.refuse("the patches are not in order");
      }
      if (patch.command >= method.commands.size()) patches_.refuse("its command does not exist");
      if (!fits(patch, method.commands[patch.command])) {
        patches_.refuse("it does not fit its command");
      }
      require_step(patches_, method.sizes, patch.step);
      patches.push_back(patch);
    }
  }

  // Whether a patch lies in its command: aligned in the parameters, or at an operand.
  static bool fits(const Patch& patch, const Command& command) {
    if (patch.kind > PatchKind::kOperand) return false;
    if (patch.kind == PatchKind::kOperand) return patch.at < command.operands.size();
    const bool narrow = patch.kind == PatchKind::kI32 || patch.kind == PatchKind::kF32;
    const size_t width = narrow ? 4 : 8;
    return patch.at % width == 0 && patch.at + width <= command.params.size();
  }

  template <typename Record>
  static void require_step(const Rows<Record>& owner, const MethodSizes& sizes, uint32_t step) {
    if (step >= sizes.steps.size()) owner.refuse("its step does not exist");
  }

  template <typename Record>
  std::vector<int64_t> read_shape(const Rows<Record>& owner, uint32_t rank) {
    if (rank > kMaxRank) owner.refuse(std::to_string(rank) + " dimensions; 32 at most");
    dims_.require(rank);
    std::vector<int64_t> shape(rank);
    for (int64_t& dim : shape) dim = dims_.next();
    return shape;
  }

  void finish() const {
    root_.finish();
    commands_.finish();
    operands_.finish();
    specs_.finish();
    keys_.finish();
    dims_.finish();
    symbols_.finish();
    expressions_.finish();
    symbolic_dims_.finish();
    patches_.finish();
  }

  template <typename T, typename Record>
  static T item(const std::vector<T>& items, uint32_t index, const Rows<Record>& owner,
                const char* what) {
    if (index >= items.size()) {
      owner.refuse(std::string(what) + " " + std::to_string(index) + " does not exist; there are " +
                   std::to_string(items.size()));
    }
    return items[index];
  }

  template <typename Record>
  std::string_view string(const Rows<Record>& owner, uint32_t index) const {
    return item(strings_, index, owner, "string");
  }

  template <typename Record>
  static DType dtype_of(const Rows<Record>& owner, uint32_t code) {
    if (code >= kDTypes.size()) owner.refuse("dtype code " + std::to_string(code) + " is unknown");
    return static_cast<DType>(code);
  }

  template <typename Record>
  static void require_zero(const Rows<Record>& owner, uint32_t reserved) {
    if (reserved != 0) owner.refuse("a reserved field is not zero");
  }

  Container sections_;
  std::vector<std::string_view> strings_;
  std::vector<std::span<const std::byte>> images_, params_;
  Rows<ProgramRecord> root_{sections_[Section::kProgram]};
  Rows<KernelRecord> kernels_{sections_[Section::kKernels]};
  Rows<BufferRecord> buffers_{sections_[Section::kBuffers]};
  Rows<MethodRecord> methods_{sections_[Section::kMethods]};
  Rows<CommandRecord> commands_{sections_[Section::kCommands]};
  Rows<OperandRecord> operands_{sections_[Section::kOperands]};
  Rows<SpecRecord> specs_{sections_[Section::kSpecs]};
  Rows<WeightRecord> weights_{sections_[Section::kWeights]};
  Rows<uint32_t> keys_{sections_[Section::kKeys]};
  Rows<int64_t> dims_{sections_[Section::kDims]};
  Rows<NodeRecord> nodes_{sections_[Section::kNodes]};
  Rows<SymbolRecord> symbols_{sections_[Section::kSymbols]};
  Rows<ExpressionRecord> expressions_{sections_[Section::kExpressions]};
  Rows<ShapesRecord> shapes_{sections_[Section::kShapes]};
  Rows<SymbolicDimRecord> symbolic_dims_{sections_[Section::kSymbolicDims]};
  Rows<PatchRecord> patches_{sections_[Section::kPatches]};
  Rows<SpecializedRecord> specialized_{sections_[Section::kSpecialized]};
  Storage* storage_ = nullptr;
};

std::shared_ptr<const Program> Program::open(const std::filesystem::path& path) {
  auto mapping = Mapping::open(path);
  const auto bytes = mapping->bytes();
  try {
    return ProgramReader(bytes).read(std::move(mapping));
  } catch (const Error& error) {
    throw Error(error.code(), path.string() + ": " + error.what());
  }
}

std::shared_ptr<const Program> Program::from_bytes(std::span<const std::byte> bytes) {
  auto copy = std::make_shared<std::vector<Page>>((bytes.size() + 4095) / 4096);
  if (!bytes.empty()) std::memcpy(copy->data(), bytes.data(), bytes.size());
  const std::span<const std::byte> view(reinterpret_cast<const std::byte*>(copy->data()),
                                        bytes.size());
  return ProgramReader(view).read(std::move(copy));
}

}  // namespace npusim
