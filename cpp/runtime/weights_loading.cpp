// How weights become loaded: from a checkpoint by the program's init, or as they were prepared.
#include "cpp/runtime/weights.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_set>

#include "cpp/platform/file.h"
#include "cpp/runtime/arenas.h"
#include "cpp/runtime/convert.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/packed_weights.h"

namespace npusim {
namespace {

class NoTensors final : public TensorSource {
 public:
  const CheckpointTensor* find(std::string_view) const override { return nullptr; }
  std::vector<std::string_view> names() const override { return {}; }
};

class FileTensors final : public TensorSource {
 public:
  FileTensors(const std::filesystem::path& path, std::shared_ptr<const Checkpoint> file)
      : path_(path), file_(std::move(file)) {}
  const CheckpointTensor* find(std::string_view name) const override { return file_->find(name); }
  std::vector<std::string_view> names() const override { return file_->names(); }
  void leave(const CheckpointTensor& tensor) const noexcept override { file_->leave(tensor); }
  void check() const override { file_->check(); }
  std::optional<TensorFile> file() const override { return TensorFile{path_, &file_->metadata()}; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const Checkpoint> file_;
};

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Of the checkpoint's tensor.
std::vector<int64_t> whole_shape(const WeightSpec& spec) {
  std::vector<int64_t> shape = spec.shape;
  if (spec.part.parts > 1) shape[spec.part.axis] *= spec.part.parts;
  return shape;
}

// Collects everything that is wrong with a checkpoint before complaining.
class Complaints {
 public:
  void missing(const WeightSpec& spec) {
    missing_.emplace_back(spec.keys.front());
    add("missing", missing_.back());
  }
  void misshapen(const WeightSpec& spec, const CheckpointTensor& tensor) {
    add("wrong shape", std::string(spec.keys.front()) + " is " + shape_text(tensor.shape) +
                           ", the program needs " + shape_text(whole_shape(spec)));
  }
  void mistyped(const WeightSpec& spec, const CheckpointTensor& tensor) {
    const bool own = !tensor.dtype || tensor.dtype_name.starts_with("F8");
    const std::string held = own ? tensor.dtype_name : std::string(dtype_name(*tensor.dtype));
    add("wrong dtype", std::string(spec.keys.front()) + " is " + held + ", the program needs " +
                           std::string(dtype_name(spec.dtype)));
  }
  void nan(const WeightSpec& spec, int64_t index) {
    add("NaN", std::string(spec.keys.front()) + " at element " + std::to_string(index));
  }
  // Throws Error(kWeights) when there is something; names what would find all missing tensors.
  void raise(const TensorSource& source) const {
    if (count_ == 0) return;
    std::string hint = renaming_hint(missing_, source.names());
    if (hint.empty() && !missing_.empty() && missing_.size() < source.names().size()) {
      hint =
          "PyTorch's state_dict() leaves out buffers that are not persistent and tensors that are "
          "plain attributes; in Python, the model itself serves as weights, and has them.";
    }
    throw Error(ErrorCode::kWeights, "the checkpoint does not fit the program (" +
                                         std::to_string(count_) +
                                         (count_ == 1 ? " tensor):" : " tensors):") + lines_ +
                                         (hint.empty() ? "" : "\n" + hint));
  }

 private:
  void add(const char* kind, const std::string& what) {
    lines_ += std::string("\n  ") + kind + ": " + what;
    ++count_;
  }
  std::string lines_;
  std::vector<std::string> missing_;
  int count_ = 0;
};

const CheckpointTensor* find(const TensorSource& source, const WeightSpec& spec,
                             const KeyNames& names) {
  for (std::string_view key : spec.keys) {
    if (const CheckpointTensor* tensor = source.find(renamed(key, names))) return tensor;
  }
  return nullptr;
}

bool fits(const CheckpointTensor& tensor, DType dtype) {
  if (!tensor.dtype) return false;
  return *tensor.dtype == dtype || (is_float(*tensor.dtype) && is_float(dtype));
}

void check(const WeightSpec& spec, const CheckpointTensor* tensor, const Weights::Options& options,
           Complaints& complaints) {
  if (tensor == nullptr) {
    complaints.missing(spec);
  } else if (tensor->shape != whole_shape(spec)) {
    complaints.misshapen(spec, *tensor);
  } else if (!fits(*tensor, spec.dtype)) {
    complaints.mistyped(spec, *tensor);
  } else if (options.check_nan && is_float(spec.dtype)) {
    const int64_t index = first_nan(tensor->data, *tensor->dtype);
    if (index >= 0) complaints.nan(spec, index);
  }
}

// Finds the tensor of every weight, in the program's order.
std::vector<const CheckpointTensor*> match(const Program& program, const TensorSource& source,
                                           const Weights::Options& options) {
  std::vector<const CheckpointTensor*> tensors;
  Complaints complaints;
  for (const WeightSpec& spec : program.weights) {
    tensors.push_back(find(source, spec, options.names));
    check(spec, tensors.back(), options, complaints);
  }
  complaints.raise(source);
  return tensors;
}

std::vector<std::string> unused(const Program& program, const TensorSource& source,
                                const KeyNames& names) {
  std::unordered_set<std::string> keys;
  for (const WeightSpec& spec : program.weights) {
    for (std::string_view key : spec.keys) keys.insert(renamed(key, names));
  }
  std::vector<std::string> extra;
  for (std::string_view name : source.names()) {
    if (!keys.contains(std::string(name))) extra.emplace_back(name);
  }
  std::sort(extra.begin(), extra.end());
  return extra;
}

std::vector<std::byte> converted(const CheckpointTensor& tensor, DType dtype) {
  const size_t elements = tensor.data.size() / static_cast<size_t>(dtype_size(*tensor.dtype));
  std::vector<std::byte> out(elements * static_cast<size_t>(dtype_size(dtype)));
  convert_floats(tensor.data, *tensor.dtype, out, dtype);
  return out;
}

bool is_aligned(const std::byte* data, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<size_t>(dtype_size(dtype)) == 0;
}

// Whether a method anybody can run reads the buffer.
std::vector<bool> read_by_methods(const Program& program) {
  std::vector<bool> read(program.buffers.size(), false);
  for (const Method& method : program.methods) {
    for (const Command& command : method.commands) {
      for (const Operand& operand : command.operands) read[operand.buffer] = true;
    }
  }
  return read;
}

// When init needs the weights, by index.
struct Readings {
  std::vector<size_t> otherwise;              // read by no command of init
  std::vector<std::vector<size_t>> starting;  // by command: read by none before it
  std::vector<std::vector<size_t>> ending;    // read by none after it, nor by a method
};

Readings readings(const Program& program) {
  const std::vector<bool> kept = read_by_methods(program);
  const size_t commands = program.init.commands.size();
  std::vector<std::optional<size_t>> first(program.buffers.size()), last(program.buffers.size());
  for (size_t i = 0; i < commands; ++i) {
    for (const Operand& operand : program.init.commands[i].operands) {
      if (!first[operand.buffer]) first[operand.buffer] = i;
      last[operand.buffer] = i;
    }
  }
  Readings found{{}, std::vector<std::vector<size_t>>(commands), {}};
  found.ending.resize(commands);
  for (size_t w = 0; w < program.weights.size(); ++w) {
    const uint32_t buffer = program.weights[w].buffer;
    (first[buffer] ? found.starting[*first[buffer]] : found.otherwise).push_back(w);
    if (last[buffer] && !kept[buffer]) found.ending[*last[buffer]].push_back(w);
  }
  return found;
}

uint64_t next_serial() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

std::shared_ptr<const TensorSource> no_tensors() {
  return std::make_shared<NoTensors>();
}

std::shared_ptr<const TensorSource> open_checkpoint(const std::filesystem::path& path) {
  return std::make_shared<FileTensors>(path, Checkpoint::open(path));
}

std::shared_ptr<const Weights> Weights::load(std::shared_ptr<const Program> program,
                                             std::shared_ptr<Device> device,
                                             std::shared_ptr<const TensorSource> source,
                                             const Options& options) {
  if (const auto packed = PackedWeights::find(source)) {
    source.reset();
    return from_packed(std::move(program), std::move(device), *packed, options);
  }
  const std::vector<const CheckpointTensor*> tensors = match(*program, *source, options);
  std::shared_ptr<Weights> weights(new Weights(program, std::move(device)));
  weights->extra_ = unused(*program, *source, options.names);
  weights->run_init(*source, tensors, options);
  source->check();
  weights->release(std::move(source));
  return weights;
}

std::shared_ptr<const Weights> Weights::from_packed(std::shared_ptr<const Program> program,
                                                    std::shared_ptr<Device> device,
                                                    const PackedWeights& packed,
                                                    const Options& options) {
  const std::string why = packed.mismatch(*program, *device, options.check_nan);
  if (why.empty()) {
    if (options.progress) options.progress(program->persistent_bytes, program->persistent_bytes);
    return load_prepared(std::move(program), std::move(device), packed.view(), options.copy);
  }
  const std::string what = platform::path_text(packed.path()) + ": these weights " + why;
  const std::filesystem::path& checkpoint = packed.origin().checkpoint;
  if (checkpoint.empty()) {
    throw Error(ErrorCode::kWeights,
                what +
                    ", and they do not say of which checkpoint. Load the checkpoint, or pack it "
                    "for this program and device (npusim pack-weights)");
  }
  try {
    Options anew = options;
    anew.names = packed.origin().names;
    std::shared_ptr<const TensorSource> source = open_checkpoint(checkpoint);
    if (PackedWeights::find(source)) {
      throw Error(ErrorCode::kWeights, "it holds packed weights itself");
    }
    auto made = std::const_pointer_cast<Weights>(load(program, device, std::move(source), anew));
    made->note_ = what + ". They were prepared anew from " + platform::path_text(checkpoint) +
                  "; npusim pack-weights packs them for this program and device.";
    return made;
  } catch (const Error& error) {
    throw Error(error.code(), what + ", and preparing them anew from " +
                                  platform::path_text(checkpoint) + " failed: " + error.what());
  }
}

std::vector<uint32_t> Weights::kept() const {
  std::vector<uint32_t> buffers;
  for (const WeightSpec& spec : program_->weights) {
    if (tensors_[spec.buffer] != nullptr) buffers.push_back(spec.buffer);
  }
  return buffers;
}

void Weights::read(const std::function<void(std::span<const std::byte>)>& take) const {
  require_one_rank();
  check_now();
  std::vector<std::byte> copy;
  const auto show = [&](const Memory& memory, int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    if (memory.host() != nullptr && device_->synchronous()) return take({memory.host(), size});
    copy.resize(size);
    device_->download(copy, memory, 0);
    take(copy);
  };
  show(*persistent_, program_->persistent_bytes);
  for (const uint32_t buffer : kept()) show(*tensors_[buffer], program_->buffers[buffer].bytes);
  check_now();
}

std::shared_ptr<const Weights> Weights::load_prepared(std::shared_ptr<const Program> program,
                                                      std::shared_ptr<Device> device,
                                                      const PreparedView& prepared, bool copy) {
  const auto fitting = [](std::span<const std::byte> bytes, int64_t size) {
    if (static_cast<int64_t>(bytes.size()) < size) {
      throw Error(ErrorCode::kWeights, "these prepared weights are another program's");
    }
    return bytes.first(static_cast<size_t>(size));
  };
  std::shared_ptr<Weights> weights(new Weights(program, std::move(device)));
  weights->require_one_rank();
  Device& on = *weights->device_;
  const auto shown = [&](std::span<const std::byte> bytes) -> std::shared_ptr<Memory> {
    constexpr uintptr_t kAligned = 64;  // as arenas are
    const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % kAligned == 0;
    if (copy || prepared.source == nullptr || !aligned) return nullptr;
    // The device only reads them: the program says so, and encode checks that kernels keep to it.
    auto memory = on.import_host({const_cast<std::byte*>(bytes.data()), bytes.size()}, nullptr);
    if (memory != nullptr) weights->source_ = prepared.source;
    return memory;
  };
  const auto persistent = fitting(prepared.persistent, program->persistent_bytes);
  if (auto memory = shown(persistent)) {
    weights->persistent_ = std::move(memory);
  } else {
    weights->allocate_persistent();
    on.upload(*weights->persistent_, 0, persistent);
  }
  std::vector<bool> missing = read_by_methods(*program);
  for (const auto& [buffer, bytes] : prepared.weights) {
    const bool is_weight =
        buffer < program->buffers.size() && program->buffers[buffer].kind == BufferKind::kWeight;
    const auto content = fitting(bytes, is_weight ? program->buffers[buffer].bytes : INT64_MAX);
    std::shared_ptr<Memory> memory = shown(content);
    if (memory == nullptr) {
      memory = on.allocate(program->buffers[buffer].bytes);
      on.upload(*memory, 0, content);
    }
    weights->tensors_[buffer] = std::move(memory);
    missing[buffer] = false;
  }
  for (const WeightSpec& spec : program->weights) {
    if (missing[spec.buffer]) fitting({}, INT64_MAX);
  }
  return weights;
}

Weights::Weights(std::shared_ptr<const Program> program, std::shared_ptr<Device> device)
    : program_(std::move(program)),
      device_(admit(std::move(device), *program_)),
      serial_(next_serial()),
      tensors_(program_->buffers.size()),
      lies_in_source_(program_->buffers.size(), false) {}

void Weights::require_one_rank() const {
  if (program_->ranks == 1) return;
  throw Error(ErrorCode::kWeights,
              "each of the program's " + std::to_string(program_->ranks) +
                  " ranks has other weights, which are neither packed nor copied: load them from "
                  "the checkpoint");
}

void Weights::allocate_persistent() {
  persistent_ = arena_on(*device_, BufferKind::kPersistent, program_->persistent_bytes);
}

// Shows a tensor to the device: in place if it can and may be, else as a copy.
void Weights::place(const WeightSpec& spec, const CheckpointTensor& tensor, bool copy) {
  if (spec.part.parts > 1) return place_parts(spec, tensor, copy);
  const bool same = *tensor.dtype == spec.dtype;
  if (same && !copy && is_aligned(tensor.data.data(), spec.dtype)) {
    // The device only reads it: the program says so, and encode checks that kernels keep to it.
    auto* data = const_cast<std::byte*>(tensor.data.data());
    std::shared_ptr<Memory> shown = device_->import_host({data, tensor.data.size()}, nullptr);
    if (shown != nullptr) {
      lies_in_source_[spec.buffer] = true;
      tensors_[spec.buffer] = std::move(shown);
      return;
    }
  }
  std::shared_ptr<Memory> memory = device_->allocate(program_->buffers[spec.buffer].bytes);
  if (same) {
    device_->upload(*memory, 0, tensor.data);
  } else {
    device_->upload(*memory, 0, converted(tensor, spec.dtype));
  }
  tensors_[spec.buffer] = std::move(memory);
}

// Each rank's part: in place where it lies in one piece, else cut out.
void Weights::place_parts(const WeightSpec& spec, const CheckpointTensor& tensor, bool copy) {
  const size_t parts = spec.part.parts, ranks = program_->ranks;
  size_t rows = 1;  // pieces that a part is in
  for (size_t d = 0; d < spec.part.axis; ++d) rows *= static_cast<size_t>(spec.shape[d]);
  const size_t bytes = tensor.data.size() / parts;
  const size_t piece = rows == 0 ? 0 : bytes / rows;
  const bool same = *tensor.dtype == spec.dtype;
  // Only ranks on the host, whose devices are synchronous, can use what lies there.
  const bool in_place = same && !copy && rows == 1 && device_->synchronous() &&
                        is_aligned(tensor.data.data(), spec.dtype) &&
                        is_aligned(tensor.data.data() + piece, spec.dtype);
  std::vector<std::vector<std::byte>> made(parts);
  std::vector<std::span<const std::byte>> shown(parts);
  for (size_t part = 0; part < parts; ++part) {
    if (in_place) {
      shown[part] = tensor.data.subspan(part * bytes, bytes);
      continue;
    }
    CheckpointTensor cut = tensor;
    std::vector<std::byte> own(bytes);
    for (size_t row = 0; row < rows; ++row) {
      const auto from = tensor.data.subspan((row * parts + part) * piece, piece);
      std::copy(from.begin(), from.end(), own.begin() + static_cast<ptrdiff_t>(row * piece));
    }
    cut.data = own;
    made[part] = same ? std::move(own) : converted(cut, spec.dtype);
    shown[part] = made[part];
  }
  std::vector<std::span<const std::byte>> by_rank;
  for (size_t rank = 0; rank < ranks; ++rank) by_rank.push_back(shown[rank * parts / ranks]);
  tensors_[spec.buffer] = device_->allocate_parts(by_rank, in_place);
  lies_in_source_[spec.buffer] = in_place;
}

// Brings each tensor before the first command that reads it, and lets go of it after the
// last, so that the checkpoint and what is made of it are never in memory as a whole.
void Weights::run_init(const TensorSource& source, std::span<const CheckpointTensor* const> tensors,
                       const Options& options) {
  const Method& init = program_->init;
  const Readings when = readings(*program_);
  int64_t done = 0, total = 0;
  for (const WeightSpec& spec : program_->weights) total += program_->buffers[spec.buffer].bytes;
  const auto tell = [&](const WeightSpec& spec) {
    done += program_->buffers[spec.buffer].bytes;
    if (options.progress) options.progress(done, total);
  };
  allocate_persistent();
  for (const size_t w : when.otherwise) {
    place(program_->weights[w], *tensors[w], options.copy);
    tell(program_->weights[w]);
  }
  if (init.commands.empty()) return;
  const std::shared_ptr<Memory> arena = arena_on(*device_, BufferKind::kTemp, init.arena_bytes);
  const std::shared_ptr<Memory> constants = constants_on(*device_, program_);
  const std::unique_ptr<CommandList> list = device_->encode(program_, init);
  bind_arena(*list, *program_, BufferKind::kTemp, *arena);
  bind_arena(*list, *program_, BufferKind::kConstant, *constants);
  bind_arena(*list, *program_, BufferKind::kPersistent, *persistent_);
  const auto bring = [&](size_t command) {
    for (const size_t w : when.starting[command]) {
      const WeightSpec& spec = program_->weights[w];
      place(spec, *tensors[w], options.copy);
      list->bind(spec.buffer, tensors_[spec.buffer]->range());
    }
  };
  bring(0);
  list->submit_stepwise([&](size_t command) {
    for (const size_t w : when.ending[command]) {
      tensors_[program_->weights[w].buffer].reset();
      source.leave(*tensors[w]);
    }
    for (const size_t w : when.starting[command]) tell(program_->weights[w]);
    if (command + 1 < init.commands.size()) bring(command + 1);
  });
}

void Weights::release(std::shared_ptr<const TensorSource> source) {
  const std::vector<bool> read = read_by_methods(*program_);
  for (const WeightSpec& spec : program_->weights) {
    if (!read[spec.buffer]) {
      tensors_[spec.buffer].reset();
    } else if (lies_in_source_[spec.buffer]) {
      source_ = source;
    }
  }
}

}  // namespace npusim
