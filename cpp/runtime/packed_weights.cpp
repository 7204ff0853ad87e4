#include "cpp/runtime/packed_weights.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "cpp/platform/file.h"
#include "cpp/runtime/atomic_file.h"
#include "cpp/runtime/crc32.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/safetensors_header.h"
#include "cpp/runtime/utf8.h"

#ifndef NPUSIM_KERNELS
#error "CMakeLists.txt tells the digest of the kernels' sources"
#endif

namespace npusim {
namespace {

constexpr std::string_view kFormat = "npusim packed weights 1";
constexpr std::string_view kPersistent = "persistent", kRecipe = "recipe", kWeight = "weight.";
constexpr size_t kFileAlignment = 4096, kTensorAlignment = 64;

int64_t padded(int64_t bytes) {
  return (bytes + int64_t{kTensorAlignment} - 1) / int64_t{kTensorAlignment} *
         int64_t{kTensorAlignment};
}

std::string weight_name(uint32_t buffer) {
  return std::string(kWeight) + std::to_string(buffer);
}

// The number that a name of weight_name ends in.
std::optional<uint32_t> buffer_of(std::string_view name) {
  if (!name.starts_with(kWeight)) return std::nullopt;
  name.remove_prefix(kWeight.size());
  uint32_t buffer = 0;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), buffer);
  if (failure != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return buffer;
}

// Bytes one after another, each thing behind its length.
class Recipe {
 public:
  void number(int64_t value) { append(std::as_bytes(std::span(&value, 1))); }
  void blob(std::span<const std::byte> bytes) {
    number(static_cast<int64_t>(bytes.size()));
    append(bytes);
  }
  void text(std::string_view value) { blob(std::as_bytes(std::span(value))); }
  // Of code, which can be long, its length and checksum.
  void code(std::span<const std::byte> image) {
    number(static_cast<int64_t>(image.size()));
    number(crc32(image));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> bytes_;
};

void describe(Recipe& recipe, const Program& program, const Operand& operand) {
  const Buffer& buffer = program.buffers[operand.buffer];
  recipe.number(operand.buffer);
  recipe.number(static_cast<int64_t>(operand.access));
  recipe.number(operand.offset);
  recipe.number(static_cast<int64_t>(buffer.kind));
  recipe.number(buffer.bytes);
  recipe.number(buffer.offset);
  if (buffer.kind == BufferKind::kConstant) {
    recipe.blob(program.constants.subspan(static_cast<size_t>(buffer.offset),
                                          static_cast<size_t>(buffer.bytes)));
  }
}

void describe(Recipe& recipe, const Program& program, const Command& command) {
  const Kernel& kernel = program.kernels[command.kernel];
  recipe.text(kernel.name);
  recipe.text(kernel.schema);
  recipe.code(kernel.image);
  recipe.blob(command.params);
  recipe.number(static_cast<int64_t>(command.operands.size()));
  for (const Operand& operand : command.operands) describe(recipe, program, operand);
}

// "checkpoint" as it is found from the folder of `file`, wherever both are moved together.
std::string relative_path(const std::filesystem::path& checkpoint,
                          const std::filesystem::path& file) {
  if (checkpoint.empty()) return "";
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::absolute(file, failure).parent_path();
  const std::filesystem::path relative =
      std::filesystem::relative(std::filesystem::absolute(checkpoint, failure), folder, failure);
  return platform::path_text(relative.empty() ? checkpoint : relative);
}

std::string lines_of(const KeyNames& names) {
  std::string lines;
  for (const auto& [ours, theirs] : names) lines += ours + "\n" + theirs + "\n";
  return lines;
}

KeyNames names_of(std::string_view lines) {
  KeyNames names;
  std::vector<std::string> found;
  for (size_t end; (end = lines.find('\n')) != std::string_view::npos; lines.remove_prefix(end + 1))
    found.emplace_back(lines.substr(0, end));
  for (size_t i = 0; i + 1 < found.size(); i += 2) names.emplace_back(found[i], found[i + 1]);
  return names;
}

void write_padded(AtomicFile& file, std::span<const std::byte> bytes) {
  constexpr std::array<std::byte, kTensorAlignment> kZeros{};
  file.write(bytes);
  const auto size = static_cast<int64_t>(bytes.size());
  file.write(std::span(kZeros).first(static_cast<size_t>(padded(size) - size)));
}

}  // namespace

std::vector<std::byte> recipe_of(const Program& program) {
  Recipe recipe;
  recipe.number(program.persistent_bytes);
  recipe.number(static_cast<int64_t>(program.weights.size()));
  for (const WeightSpec& spec : program.weights) {
    recipe.number(spec.buffer);
    recipe.number(static_cast<int64_t>(spec.dtype));
    recipe.number(static_cast<int64_t>(spec.shape.size()));
    for (const int64_t size : spec.shape) recipe.number(size);
    recipe.number(static_cast<int64_t>(spec.keys.size()));
    for (const std::string_view key : spec.keys) recipe.text(key);
  }
  recipe.number(static_cast<int64_t>(program.init.commands.size()));
  for (const Command& command : program.init.commands) describe(recipe, program, command);
  return recipe.take();
}

void pack_weights(const Weights& weights, const std::filesystem::path& path,
                  const PackedOrigin& origin) {
  const Program& program = weights.program();
  const std::pair<std::string_view, std::string> metadata[] = {
      {"format", std::string(kFormat)},
      {"device", weights.device().kind()},
      {"kernels", NPUSIM_KERNELS},
      {"checked_nan", origin.checked_nan ? "1" : "0"},
      {"checkpoint", relative_path(origin.checkpoint, path)},
      {"renamings", lines_of(origin.names)}};
  SafetensorsHeader header(metadata);
  const auto add = [&header](std::string_view name, int64_t bytes) {
    header.add(name, DType::kUint8, {&bytes, 1});
  };
  add(kPersistent, padded(program.persistent_bytes));
  for (const uint32_t buffer : weights.kept()) {
    add(weight_name(buffer), padded(program.buffers[buffer].bytes));
  }
  const std::vector<std::byte> recipe = recipe_of(program);
  add(kRecipe, static_cast<int64_t>(recipe.size()));
  AtomicFile file(path);
  header.write(file, kFileAlignment);
  weights.read([&file](std::span<const std::byte> bytes) { write_padded(file, bytes); });
  file.write(recipe);
  weights.check_now();
  file.commit();
}

std::optional<PackedWeights> PackedWeights::find(std::shared_ptr<const TensorSource> source) {
  const std::optional<TensorFile> file = source->file();
  if (!file) return std::nullopt;
  const auto format = file->metadata->find("format");
  if (format == file->metadata->end() || !format->second.starts_with("npusim packed weights")) {
    return std::nullopt;
  }
  return PackedWeights(std::move(source));
}

PackedWeights::PackedWeights(std::shared_ptr<const TensorSource> source)
    : source_(std::move(source)), path_(source_->file()->path) {
  if (const std::string format = said("format"); format != kFormat) {
    refuse("their format is " + quote_name(format) + ", and this npusim reads '" +
           std::string(kFormat) + "'");
  }
  const std::string checkpoint = said("checkpoint");
  if (!checkpoint.empty()) {
    origin_.checkpoint = (path_.parent_path() / platform::path_of(checkpoint)).lexically_normal();
  }
  origin_.names = names_of(said("renamings"));
  origin_.checked_nan = said("checked_nan") == "1";
}

void PackedWeights::refuse(const std::string& why) const {
  throw Error(ErrorCode::kFormat,
              "Cannot use the packed weights " + platform::path_text(path_) + ": " + why + ".");
}

std::string PackedWeights::said(const char* key) const {
  const std::optional<TensorFile> file = source_->file();
  const auto found = file->metadata->find(key);
  if (found == file->metadata->end()) refuse("they do not say their '" + std::string(key) + "'");
  return found->second;
}

std::span<const std::byte> PackedWeights::tensor(std::string_view name) const {
  const CheckpointTensor* found = source_->find(name);
  if (found == nullptr || found->dtype != DType::kUint8 || found->shape.size() != 1) {
    refuse("the tensor " + quote_name(name) + " is missing, or of another kind");
  }
  return found->data;
}

std::string PackedWeights::mismatch(const Program& program, const Device& device,
                                    bool check_nan) const {
  if (const std::string kind = said("device"); kind != device.kind()) {
    return "were packed for " + quote_name(kind) + ", and this device is " +
           quote_name(device.kind());
  }
  if (said("kernels") != NPUSIM_KERNELS) return "were packed by another version of npusim";
  const std::vector<std::byte> recipe = recipe_of(program);
  if (!std::ranges::equal(recipe, tensor(kRecipe))) {
    return "were packed for a program that prepares its weights in another way";
  }
  if (check_nan && !origin_.checked_nan) return "were packed without a look for NaN";
  return "";
}

PreparedView PackedWeights::view() const {
  PreparedView view{.persistent = tensor(kPersistent), .weights = {}, .source = source_};
  for (const std::string_view name : source_->names()) {
    if (const std::optional<uint32_t> buffer = buffer_of(name)) {
      view.weights.emplace_back(*buffer, tensor(name));
    }
  }
  return view;
}

}  // namespace npusim
