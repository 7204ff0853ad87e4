#include "cpp/runtime/sized_program.h"

#include <algorithm>
#include <cstring>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

[[noreturn]] void refuse(const Method& method, size_t input, size_t axis, int64_t value,
                         const std::string& why) {
  throw Error(ErrorCode::kInput, "input " + std::string(method.inputs[input].name) +
                                     ": dimension " + std::to_string(axis) + " is " +
                                     std::to_string(value) + why);
}

// The value of one symbol, told by a dimension of an input.
int64_t solve(const Method& method, size_t index, const Shape& shape) {
  const MethodSizes& sizes = method.sizes;
  const ToldSymbol& told = sizes.told[index];
  const Symbol& symbol = sizes.symbols[index];
  const int64_t value = shape[told.axis];
  const auto found = std::find_if(sizes.dims.begin(), sizes.dims.end(), [&](const auto& dim) {
    return dim.spec == told.input && dim.axis == told.axis;
  });
  const std::string text = size_text(sizes, found->step);
  int64_t rest = 0;
  if (__builtin_sub_overflow(value, told.constant, &rest) || rest % told.factor != 0) {
    refuse(method, told.input, told.axis, value, ", which is not of the form " + text);
  }
  const int64_t solved = rest / told.factor;
  if (solved < symbol.low || solved > symbol.high) {
    const auto end = [&](int64_t at) { return std::to_string(told.factor * at + told.constant); };
    refuse(method, told.input, told.axis, value,
           "; " + text + " is " + end(symbol.low) + " … " + end(symbol.high) + " (" +
               describe({&symbol, 1}) + ")");
  }
  return solved;
}

// The inputs' dimensions at these sizes are those given.
void check_dims(const Method& method, std::span<const Shape> inputs,
                std::span<const int64_t> symbols) {
  const std::vector<int64_t> results = evaluate(method.sizes, symbols);
  auto dim = method.sizes.dims.begin();
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t axis = 0; axis < inputs[i].size(); ++axis) {
      const int64_t given = inputs[i][axis];
      if (dim == method.sizes.dims.end() || dim->spec != i || dim->axis != axis) {
        const int64_t wanted = method.inputs[i].shape[axis];
        if (given != wanted) refuse(method, i, axis, given, ", expected " + std::to_string(wanted));
        continue;
      }
      const int64_t wanted = results[dim->step];
      if (given != wanted) {
        refuse(method, i, axis, given,
               ", expected " + size_text(method.sizes, dim->step) + " = " + std::to_string(wanted) +
                   " (" + sizes_text(method, symbols) + ")");
      }
      ++dim;
    }
  }
}

}  // namespace

std::string sizes_text(const Method& method, std::span<const int64_t> symbols) {
  std::string text;
  for (size_t i = 0; i < symbols.size(); ++i) {
    text += (i ? ", " : "") + std::string(method.sizes.symbols[i].name) + " = " +
            std::to_string(symbols[i]);
  }
  return text;
}

std::vector<int64_t> symbols_of(const Method& method, std::span<const Shape> inputs) {
  const MethodSizes& sizes = method.sizes;
  if (sizes.symbols.empty()) return {};
  if (inputs.size() != method.inputs.size()) {
    throw Error(ErrorCode::kInput, "the method has " + std::to_string(method.inputs.size()) +
                                       " inputs, got " + std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].size() != method.inputs[i].shape.size()) {
      throw Error(ErrorCode::kInput, "input " + std::string(method.inputs[i].name) +
                                         " has the shape " + shape_text(inputs[i]) + ", expected " +
                                         std::to_string(method.inputs[i].shape.size()) +
                                         " dimensions");
    }
  }
  std::vector<int64_t> symbols;
  for (size_t i = 0; i < sizes.symbols.size(); ++i) {
    symbols.push_back(solve(method, i, inputs[sizes.told[i].input]));
  }
  check_dims(method, inputs, symbols);
  return symbols;
}

// Builds the program of one call. Used once.
class SizedProgram {
 public:
  SizedProgram(std::shared_ptr<const Program> whole, const Method& method,
               std::span<const int64_t> symbols)
      : sizes_(method.sizes), results_(evaluate(method.sizes, symbols)) {
    storage_->whole = whole;
    program_->target = whole->target;
    program_->metadata = whole->metadata;
    program_->simulation = whole->simulation;
    program_->fingerprint = whole->fingerprint;
    program_->kernels = whole->kernels;
    program_->buffers = whole->buffers;
    program_->nodes = whole->nodes;
    program_->constants = whole->constants;
    program_->persistent_bytes = whole->persistent_bytes;
    program_->state_bytes = whole->state_bytes;
    program_->ranks = whole->ranks;
    method_ = method;
    method_.sizes = {};
  }

  std::shared_ptr<const Program> build() {
    for (const SymbolicDim& dim : sizes_.dims) set_dim(dim);
    for (std::vector<TensorSpec>* specs : {&method_.inputs, &method_.outputs}) {
      for (const TensorSpec& spec : *specs) {
        int64_t bytes = dtype_size(spec.dtype);
        for (const int64_t extent : spec.alloc_shape) bytes *= extent;  // within the room
        program_->buffers[spec.buffer].bytes = bytes;
      }
    }
    for (size_t i = 0; i < sizes_.patches.size();) i = patch_command(i);
    for (const Command& command : method_.commands) check_offsets(command);
    program_->methods.push_back(std::move(method_));
    program_->storage_ = std::move(storage_);
    return program_;
  }

 private:
  struct Storage {
    std::shared_ptr<const Program> whole;
    std::vector<std::vector<uint64_t>> params;
    std::vector<std::vector<Operand>> operands;
  };

  void set_dim(const SymbolicDim& dim) {
    const size_t inputs = method_.inputs.size();
    TensorSpec& spec =
        dim.spec < inputs ? method_.inputs[dim.spec] : method_.outputs[dim.spec - inputs];
    const int64_t value = results_[dim.step], room = spec.alloc_shape[dim.axis];
    if (value < 0 || value > room) {
      throw Error(ErrorCode::kInput, "dimension " + std::to_string(dim.axis) + " of " +
                                         std::string(spec.name) + " would be " +
                                         std::to_string(value) + "; there is room for " +
                                         std::to_string(room));
    }
    spec.shape[dim.axis] = spec.alloc_shape[dim.axis] = value;
  }

  // Applies the patches of one command, from `first` on; returns the index after them.
  size_t patch_command(size_t first) {
    Command& command = method_.commands[sizes_.patches[first].command];
    std::vector<uint64_t>& params = storage_->params.emplace_back((command.params.size() + 7) / 8);
    auto* bytes = reinterpret_cast<std::byte*>(params.data());
    std::copy(command.params.begin(), command.params.end(), bytes);
    command.params = {bytes, command.params.size()};
    std::vector<Operand>& operands =
        storage_->operands.emplace_back(command.operands.begin(), command.operands.end());
    command.operands = operands;
    size_t i = first;
    for (; i < sizes_.patches.size() && sizes_.patches[i].command == sizes_.patches[first].command;
         ++i) {
      const Patch& patch = sizes_.patches[i];
      const int64_t value = results_[patch.step];
      switch (patch.kind) {
        case PatchKind::kI32:
          if (value != static_cast<int32_t>(value)) too_large(value);
          store(bytes + patch.at, static_cast<int32_t>(value));
          break;
        case PatchKind::kI64:
          store(bytes + patch.at, value);
          break;
        case PatchKind::kF32:
          store(bytes + patch.at, static_cast<float>(value));
          break;
        case PatchKind::kF64:
          store(bytes + patch.at, static_cast<double>(value));
          break;
        case PatchKind::kOperand:
          operands[patch.at].offset = value;
      }
    }
    return i;
  }

  template <typename T>
  static void store(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof value);
  }

  [[noreturn]] static void too_large(int64_t value) {
    throw Error(ErrorCode::kInput,
                "a size of " + std::to_string(value) + " is more than a kernel can count");
  }

  // An operand may lie at its buffer's end; its kernel's check then proves that it touches nothing.
  void check_offsets(const Command& command) const {
    for (const Operand& operand : command.operands) {
      const int64_t bytes = program_->buffers[operand.buffer].bytes;
      if (operand.offset < 0 || operand.offset > bytes) {
        throw Error(ErrorCode::kFormat, "The program is not sound: at these sizes an operand of " +
                                            std::string(program_->nodes[command.node].name) +
                                            " lies outside its buffer. Compile the model again.");
      }
    }
  }

  const MethodSizes& sizes_;
  std::vector<int64_t> results_;
  std::shared_ptr<Storage> storage_ = std::make_shared<Storage>();
  std::shared_ptr<Program> program_ = std::make_shared<Program>();
  Method method_;
};

std::shared_ptr<const Program> at_sizes(std::shared_ptr<const Program> program, size_t index,
                                        std::span<const int64_t> symbols) {
  if (index >= program->methods.size()) {
    throw Error(ErrorCode::kInput, "the program has no method " + std::to_string(index));
  }
  const Method& method = program->methods[index];
  const std::vector<Symbol>& wanted = method.sizes.symbols;
  if (symbols.size() != wanted.size()) {
    throw Error(ErrorCode::kInput, "method " + std::string(method.name) + " needs the sizes " +
                                       describe(wanted) + "; got " +
                                       std::to_string(symbols.size()));
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i] < wanted[i].low || symbols[i] > wanted[i].high) {
      throw Error(ErrorCode::kInput, std::string(wanted[i].name) + " is " +
                                         std::to_string(symbols[i]) + "; possible is " +
                                         describe({&wanted[i], 1}));
    }
  }
  return SizedProgram(std::move(program), method, symbols).build();
}

}  // namespace npusim
