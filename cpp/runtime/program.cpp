// Reads the records of a .npubin file (program_records.h). The container around them is
// container.cpp, those of symbolic sizes are read in sizes_reader.cpp, and what must hold between
// all of them is program_validate.cpp.
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

#include <array>
#include <cstring>

#include "cpp/runtime/container.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/mapping.h"
#include "cpp/runtime/program_records.h"
#include "cpp/runtime/program_validate.h"
#include "cpp/runtime/sizes_reader.h"
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

struct Storage {
  std::shared_ptr<const void> file;
  std::vector<Operand> operands;
  std::vector<Specialized> specialized;
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
  std::shared_ptr<const Program> read(std::span<const std::byte> image,
                                      std::shared_ptr<const void> owner) {
    auto storage = std::make_shared<Storage>();
    storage->file = std::move(owner);
    // Spans point into these: they must not move.
    storage->operands.reserve(operands_.left());
    storage->specialized.reserve(specialized_.left());
    storage_ = storage.get();
    auto program = std::make_shared<Program>();
    program->storage_ = std::move(storage);
    program->image = image;
    read_root(*program);
    read_kernels(*program);
    read_buffers(*program);
    read_methods(*program);
    read_weights(*program);
    read_weight_parts(*program);
    read_nodes(*program);
    sizes_.read(program->methods);
    finish();
    validate(*program);
    return program;
  }

 private:
  void read_root(Program& program) {
    const auto record = root_.next();
    program.ranks = std::max<uint32_t>(record.ranks, 1);
    if (record.ranks == 1 || record.ranks > kMostRanks) {
      root_.refuse(std::to_string(record.ranks) + " ranks; 0 (for one), or 2 … 64, are possible");
    }
    program.target = string(root_, record.target);
    program.persistent_bytes = record.persistent_bytes;
    program.state_bytes = record.state_bytes;
    program.constants = sections_[Section::kConstants].bytes;
    program.metadata = json_text(Section::kMetadata);
    program.simulation = json_text(Section::kSimulation);
    program.fingerprint = sections_.fingerprint();
  }

  std::string_view json_text(Section section) {
    const Chunk& chunk = sections_[section];
    const std::string_view text = text_of(chunk.bytes);
    if (!is_utf8(text)) chunk.refuse(0, "it is not UTF-8");
    return text;
  }

  void read_kernels(Program& program) {
    program.kernels.reserve(kernels_.left());
    while (kernels_.left() != 0) {
      const auto record = kernels_.next();
      kernels_.require_zero(record.reserved);
      Kernel kernel{string(kernels_, record.name), string(kernels_, record.schema), {}, {}};
      if (record.image != kNoImage) kernel.image = kernels_.pick(images_, record.image, "image");
      program.kernels.push_back(kernel);
    }
    read_specialized(program);
  }

  void read_specialized(Program& program) {
    std::vector<Specialized>& codes = storage_->specialized;
    size_t before = 0;
    while (specialized_.left() != 0) {
      const auto record = specialized_.next();
      specialized_.require_zero(record.reserved);
      if (record.kernel < before || record.kernel >= program.kernels.size()) {
        specialized_.refuse("its kernel does not exist, or is out of order");
      }
      before = record.kernel;
      codes.push_back({specialized_.pick(params_, record.params, "params"),
                       specialized_.pick(images_, record.image, "image")});
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
    for (const uint32_t field : record.reserved) commands_.require_zero(field);
    Command command{
        record.kernel, record.node, commands_.pick(params_, record.params, "params"), {}};
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
      WeightSpec weight{{}, record.buffer, dtype_of(weights_, record.dtype), {}, {}};
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

  void read_weight_parts(Program& program) {
    size_t next = 0;
    while (weight_parts_.left() != 0) {
      const auto record = weight_parts_.next();
      weight_parts_.require_zero(record.reserved);
      if (record.weight < next || record.weight >= program.weights.size()) {
        weight_parts_.refuse("its weight does not exist, or is out of order");
      }
      next = record.weight + size_t{1};
      WeightSpec& weight = program.weights[record.weight];
      if (record.axis >= weight.shape.size() || record.parts == 0 ||
          program.ranks % record.parts != 0) {
        weight_parts_.refuse(std::to_string(record.parts) + " parts along axis " +
                             std::to_string(record.axis) + " for " + std::to_string(program.ranks) +
                             " ranks");
      }
      weight.part = {record.axis, record.parts};
    }
  }

  void read_nodes(Program& program) {
    program.nodes.reserve(nodes_.left());
    while (nodes_.left() != 0) {
      const auto record = nodes_.next();
      nodes_.require_zero(record.reserved);
      program.nodes.push_back(
          {string(nodes_, record.name), string(nodes_, record.op), string(nodes_, record.source)});
    }
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
    sizes_.finish();
  }

  template <typename Record>
  std::string_view string(const Rows<Record>& owner, uint32_t index) const {
    return owner.pick(strings_, index, "string");
  }

  template <typename Record>
  static DType dtype_of(const Rows<Record>& owner, uint32_t code) {
    if (code >= kDTypes.size()) owner.refuse("dtype code " + std::to_string(code) + " is unknown");
    return static_cast<DType>(code);
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
  SizesReader sizes_{sections_, strings_};
  Rows<SpecializedRecord> specialized_{sections_[Section::kSpecialized]};
  Rows<WeightPartRecord> weight_parts_{sections_[Section::kWeightParts]};
  Storage* storage_ = nullptr;
};

std::shared_ptr<const Program> Program::open(const std::filesystem::path& path) {
  // A copy, and not a map: nobody checks again what was validated, so nobody may change it.
  size_t size = 0;
  auto copy = std::make_shared<std::vector<FilePage>>(read_file(path, size));
  const std::span bytes(reinterpret_cast<const std::byte*>(copy->data()), size);
  try {
    return ProgramReader(bytes).read(bytes, std::move(copy));
  } catch (const Error& error) {
    throw Error(error.code(), platform::path_text(path) + ": " + error.what());
  }
}

std::shared_ptr<const Program> Program::from_bytes(std::span<const std::byte> bytes) {
  auto copy = std::make_shared<std::vector<FilePage>>((bytes.size() + 4095) / 4096);
  if (!bytes.empty()) std::memcpy(copy->data(), bytes.data(), bytes.size());
  const std::span<const std::byte> view(reinterpret_cast<const std::byte*>(copy->data()),
                                        bytes.size());
  return ProgramReader(view).read(view, std::move(copy));
}

size_t method_index(const Program& program, std::string_view name) {
  if (name.empty()) return 0;
  std::string known;
  for (size_t i = 0; i < program.methods.size(); ++i) {
    if (program.methods[i].name == name) return i;
    known += (i ? ", " : "") + std::string(program.methods[i].name);
  }
  throw Error(ErrorCode::kInput,
              "the program has no method " + std::string(name) + "; it has: " + known);
}

size_t spec_index(std::span<const TensorSpec> specs, std::string_view name) {
  std::string known;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return i;
    known += (i ? ", " : "") + std::string(specs[i].name);
  }
  throw Error(ErrorCode::kInput,
              "the method has no tensor " + std::string(name) + " there; it has: " + known);
}

}  // namespace npusim
