#include "cpp/runtime/program_validate.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>

#include "cpp/runtime/error.h"
#include "cpp/runtime/utf8.h"

namespace npusim {
namespace {

constexpr int64_t kAlignment = 64;

// Access each kind of buffer allows, as bits 1 << Access; index: BufferKind.
constexpr uint32_t kNone = 0, kRead = 1, kAny = 7;
constexpr std::array<uint32_t, 7> kInitAccess = {kNone, kNone, kAny, kRead, kRead, kAny, kNone};
constexpr std::array<uint32_t, 7> kRunAccess = {kRead, kAny, kAny, kRead, kRead, kRead, kAny};
constexpr std::array<std::string_view, 7> kKindNames = {"INPUT",    "OUTPUT",     "TEMP", "WEIGHT",
                                                        "CONSTANT", "PERSISTENT", "STATE"};

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(ErrorCode::kFormat,
              "The program is not sound: " + where + ": " + why + ". Compile the model again.");
}

std::string_view kind_name(BufferKind kind) {
  return kKindNames[static_cast<size_t>(kind)];
}

std::string numbered(const char* what, size_t index) {
  return std::string(what) + " " + std::to_string(index);
}

void check_bytes(int64_t bytes, const std::string& where) {
  if (bytes < 0 || bytes > kMaxBytes) {
    refuse(where,
           std::to_string(bytes) + " bytes; 0 … " + std::to_string(kMaxBytes) + " are possible");
  }
}

void check_distinct(std::vector<uint32_t> buffers, const std::string& where) {
  std::sort(buffers.begin(), buffers.end());
  if (std::adjacent_find(buffers.begin(), buffers.end()) != buffers.end()) {
    refuse(where, "a buffer appears twice");
  }
}

// First by place, then by content: once no two names are the same bytes of the file, comparing
// all of them costs no more than the file is long (times the depth of the sort).
void check_distinct(std::vector<std::string_view> names, const std::string& where,
                    const std::string& what = "a name appears") {
  const auto twice = [&] { refuse(where, what + " twice"); };
  std::sort(names.begin(), names.end(),
            [](auto a, auto b) { return std::less<>()(a.data(), b.data()); });
  if (std::adjacent_find(names.begin(), names.end(), [](auto a, auto b) {
        return a.data() == b.data() && a.size() == b.size();
      }) != names.end()) {
    twice();
  }
  std::sort(names.begin(), names.end());
  if (std::adjacent_find(names.begin(), names.end()) != names.end()) twice();
}

// Bytes of a dense tensor. Refuses a shape whose strides or size could overflow anywhere.
int64_t tensor_bytes(DType dtype, std::span<const int64_t> shape, const std::string& where) {
  if (shape.size() > kMaxRank) refuse(where, "more than 32 dimensions");
  int64_t extent = dtype_size(dtype);  // the product without zeros bounds every partial product
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0 || dim > kMaxBytes) refuse(where, "a dimension of " + std::to_string(dim));
    if (dim > kMaxBytes / extent) refuse(where, "its shape takes more than 2^40 bytes");
    if (dim == 0) {
      empty = true;
    } else {
      extent *= dim;
    }
  }
  return empty ? 0 : extent;
}

class Validator {
 public:
  explicit Validator(const Program& program)
      : program_(program), bound_in_(program.buffers.size(), 0) {}

  void run() {
    if (program_.target.empty()) refuse("target", "it has no name");
    if (program_.methods.empty()) refuse("methods", "there is none to run");
    check_bytes(program_.persistent_bytes, "persistent_bytes");
    check_bytes(program_.state_bytes, "state_bytes");
    check_kernels();
    for (size_t i = 0; i < program_.buffers.size(); ++i) check_buffer(i);
    check_weights();
    check_methods();
  }

 private:
  void check_kernels() const {
    for (size_t i = 0; i < program_.kernels.size(); ++i) {
      const Kernel& kernel = program_.kernels[i];
      if (kernel.name.empty()) refuse(numbered("kernel", i), "it has no name");
      if (kernel.specialized.empty()) continue;
      if (!kernel.image.empty()) {
        refuse(numbered("kernel", i), "it has device code for all parameters, and for some");
      }
      std::vector<std::string_view> params;
      for (const Specialized& code : kernel.specialized) {
        if (code.image.empty()) {
          refuse(numbered("kernel", i), "it has no device code for parameters");
        }
        params.emplace_back(reinterpret_cast<const char*>(code.params.data()), code.params.size());
      }
      check_distinct(std::move(params), numbered("kernel", i),
                     "it has device code for the same parameters");
    }
  }

  void check_buffer(size_t index) const {
    const Buffer& buffer = program_.buffers[index];
    const std::string where = numbered("buffer", index);
    check_bytes(buffer.bytes, where + ": size");
    check_bytes(buffer.offset, where + ": offset");
    const auto end = end_of(buffer.kind);
    if (!end) {
      if (buffer.offset != 0) refuse(where, "its offset is not zero");
      return;
    }
    if (buffer.offset % kAlignment != 0) refuse(where, "its offset is no multiple of 64");
    if (buffer.offset + buffer.bytes > *end) {
      refuse(where, "bytes " + std::to_string(buffer.offset) + " … " +
                        std::to_string(buffer.offset + buffer.bytes) + " pass the end at " +
                        std::to_string(*end));
    }
  }

  // Where the arena or section of a kind ends; nothing for kinds that live in no such thing.
  std::optional<int64_t> end_of(BufferKind kind) const {
    switch (kind) {
      case BufferKind::kTemp:
        return 2 * kMaxBytes;  // the arenas of the methods that name it: check_operand
      case BufferKind::kConstant:
        return static_cast<int64_t>(program_.constants.size());
      case BufferKind::kPersistent:
        return program_.persistent_bytes;
      case BufferKind::kState:
        return program_.state_bytes;
      default:
        return std::nullopt;
    }
  }

  void check_weights() const {
    // One tensor may be needed whole, and in parts: keys differ among those of the same part.
    std::map<std::pair<uint32_t, uint32_t>, std::vector<std::string_view>> keys_by_part;
    std::vector<uint32_t> buffers;
    for (size_t i = 0; i < program_.weights.size(); ++i) {
      const WeightSpec& weight = program_.weights[i];
      const std::string where = numbered("weight", i);
      auto& keys = keys_by_part[{weight.part.axis, weight.part.parts}];
      if (weight.keys.empty()) refuse(where, "it has no key");
      for (const auto key : weight.keys) {
        if (key.empty()) refuse(where, "it has an empty key");
        keys.push_back(key);
      }
      check_tensor(weight.buffer, weight.dtype, weight.shape, BufferKind::kWeight, where);
      if (weight.part.parts > 1) {
        std::vector<int64_t> whole = weight.shape;
        if (whole[weight.part.axis] > kMaxBytes) refuse(where, "its parts are too large");
        whole[weight.part.axis] *= weight.part.parts;
        tensor_bytes(weight.dtype, whole, where);
      }
      buffers.push_back(weight.buffer);
    }
    for (auto& [part, keys] : keys_by_part) check_distinct(std::move(keys), "weights' keys");
    check_distinct(std::move(buffers), "weights");
    const auto shown =
        std::count_if(program_.buffers.begin(), program_.buffers.end(),
                      [](const Buffer& buffer) { return buffer.kind == BufferKind::kWeight; });
    if (static_cast<size_t>(shown) != program_.weights.size()) {
      refuse("weights", "a WEIGHT buffer belongs to none");
    }
  }

  // Verifies that a buffer of `kind` holds exactly a dense tensor.
  void check_tensor(uint32_t index, DType dtype, std::span<const int64_t> shape, BufferKind kind,
                    const std::string& where) const {
    if (index >= program_.buffers.size()) refuse(where, "there is no " + numbered("buffer", index));
    const Buffer& buffer = program_.buffers[index];
    if (buffer.kind != kind) {
      refuse(where, "its buffer is " + std::string(kind_name(buffer.kind)) + ", not " +
                        std::string(kind_name(kind)));
    }
    const int64_t bytes = tensor_bytes(dtype, shape, where);
    if (bytes != buffer.bytes) {
      refuse(where, "it takes " + std::to_string(bytes) + " bytes, its buffer has " +
                        std::to_string(buffer.bytes));
    }
  }

  void check_methods() {
    if (!program_.init.inputs.empty() || !program_.init.outputs.empty()) {
      refuse("init", "it has inputs or outputs");
    }
    check_method(program_.init, kInitAccess, "init");
    std::vector<std::string_view> names;
    for (const Method& method : program_.methods) {
      if (method.name.empty()) refuse("methods", "one has no name");
      names.push_back(method.name);
      check_method(method, kRunAccess, "method " + quote_name(method.name));
    }
    check_distinct(std::move(names), "methods");
  }

  void check_method(const Method& method, std::span<const uint32_t, 7> allowed,
                    const std::string& where) {
    ++method_number_;
    check_bytes(method.arena_bytes, where + ": arena");
    check_specs(method.inputs, BufferKind::kInput, where + ", input");
    check_specs(method.outputs, BufferKind::kOutput, where + ", output");
    for (size_t i = 0; i < method.commands.size(); ++i) {
      check_command(method, method.commands[i], allowed, where, i);
    }
    for (const Patch& patch : method.sizes.patches) {
      const Command& command = method.commands[patch.command];
      if (!program_.kernels[command.kernel].image.empty()) {
        refuse(where + ", " + numbered("command", patch.command),
               "device code has its sizes as constants, and the command's depend on the call");
      }
    }
  }

  void check_specs(const std::vector<TensorSpec>& specs, BufferKind kind,
                   const std::string& where) {
    std::vector<std::string_view> names;
    std::vector<uint32_t> buffers;
    for (const TensorSpec& spec : specs) {
      const std::string here = where + " " + quote_name(spec.name);
      if (spec.name.empty()) refuse(where, "it has no name");
      check_tensor(spec.buffer, spec.dtype, spec.alloc_shape, kind, here);
      for (size_t d = 0; d < spec.shape.size(); ++d) {
        if (spec.shape[d] < 0 || spec.shape[d] > spec.alloc_shape[d]) {
          refuse(here, "its shape does not fit into its alloc_shape");
        }
      }
      names.push_back(spec.name);
      buffers.push_back(spec.buffer);
      bound_in_[spec.buffer] = method_number_;
    }
    check_distinct(std::move(names), where);
    check_distinct(std::move(buffers), where);
  }

  void check_command(const Method& method, const Command& command,
                     std::span<const uint32_t, 7> allowed, const std::string& method_name,
                     size_t index) const {
    // Built only for a refusal: there may be many commands.
    const auto where = [&] { return method_name + ", " + numbered("command", index); };
    if (command.kernel >= program_.kernels.size()) {
      refuse(where(), "there is no " + numbered("kernel", command.kernel));
    }
    if (command.node >= program_.nodes.size()) {
      refuse(where(), "there is no " + numbered("node", command.node));
    }
    for (size_t i = 0; i < command.operands.size(); ++i) {
      if (const char* breach = operand_breach(method, command.operands[i], allowed)) {
        refuse(where() + ", " + numbered("operand", i), breach);
      }
    }
  }

  const char* operand_breach(const Method& method, const Operand& operand,
                             std::span<const uint32_t, 7> allowed) const {
    if (operand.buffer >= program_.buffers.size()) return "its buffer does not exist";
    const Buffer& buffer = program_.buffers[operand.buffer];
    const uint32_t access = 1u << static_cast<uint32_t>(operand.access);
    if ((allowed[static_cast<size_t>(buffer.kind)] & access) == 0) {
      return "this access to a buffer of its kind is not allowed here";
    }
    if (operand.offset < 0 || operand.offset >= std::max<int64_t>(buffer.bytes, 1)) {
      return "its offset is outside its buffer";
    }
    if (buffer.kind == BufferKind::kTemp && buffer.offset + buffer.bytes > method.arena_bytes) {
      return "its buffer passes the method's arena";
    }
    const bool external = buffer.kind == BufferKind::kInput || buffer.kind == BufferKind::kOutput;
    if (external && bound_in_[operand.buffer] != method_number_) {
      return "its buffer is no input or output of the method";
    }
    return nullptr;
  }

  const Program& program_;
  std::vector<size_t> bound_in_;  // by buffer: the last method that had it as input or output
  size_t method_number_ = 0;      // counts from 1; init is 1
};

}  // namespace

void validate(const Program& program) {
  Validator(program).run();
}

}  // namespace npusim
