// Fuzzes the .npubin loader: whatever the bytes, Program::from_bytes refuses them with an Error or
// returns a Program all of whose views, indices and ranges hold. Mutations keep the container
// sound most of the time, or the checksums would stop everything at the door.
#include <cstdint>
#include <cstdlib>
#include <random>

#include "cpp/fuzz/npubin_image.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/metadata.h"
#include "cpp/runtime/program.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace npusim {
namespace {

uint64_t sink;  // what is read ends here, so that no read is optimised away

void require(bool condition) {
  if (!condition) std::abort();
}

void touch(std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) sink += std::to_integer<uint64_t>(b);
}

void touch(std::string_view text) {
  touch(std::as_bytes(std::span(text)));
}

int64_t end_of(const Program& program, BufferKind kind) {
  switch (kind) {
    case BufferKind::kConstant:
      return static_cast<int64_t>(program.constants.size());
    case BufferKind::kPersistent:
      return program.persistent_bytes;
    case BufferKind::kState:
      return program.state_bytes;
    default:
      return int64_t{1} << 41;
  }
}

void walk_command(const Program& program, const Method& method, const Command& command) {
  touch(program.kernels.at(command.kernel).name);
  touch(program.nodes.at(command.node).name);
  touch(command.params);
  require(reinterpret_cast<uintptr_t>(command.params.data()) % 8 == 0);
  for (const Operand& operand : command.operands) {
    const Buffer& buffer = program.buffers.at(operand.buffer);
    require(operand.offset >= 0 && operand.offset <= buffer.bytes);
    if (buffer.kind == BufferKind::kTemp) {
      require(buffer.offset + buffer.bytes <= method.arena_bytes);
    }
    const bool fixed = buffer.kind == BufferKind::kInput || buffer.kind == BufferKind::kWeight ||
                       buffer.kind == BufferKind::kConstant;
    require(!fixed || operand.access == Access::kRead);
  }
}

void walk_specs(const Program& program, const std::vector<TensorSpec>& specs) {
  for (const TensorSpec& spec : specs) {
    int64_t bytes = dtype_size(spec.dtype);
    for (const int64_t dim : spec.alloc_shape) bytes *= dim;
    require(bytes == program.buffers.at(spec.buffer).bytes);
    require(spec.shape.size() == spec.alloc_shape.size());
    touch(spec.name);
  }
}

void walk_method(const Program& program, const Method& method) {
  touch(method.name);
  walk_specs(program, method.inputs);
  walk_specs(program, method.outputs);
  for (const Command& command : method.commands) walk_command(program, method, command);
}

// What the metadata says of states holds, or the reader refuses it.
void walk_states(const Program& program) {
  for (const StateTensor& state : read_metadata(program).states) {
    const Buffer& buffer = program.buffers.at(state.buffer);
    int64_t bytes = dtype_size(state.dtype);
    for (const int64_t dim : state.shape) bytes *= dim;
    require(buffer.kind == BufferKind::kState && bytes == buffer.bytes);
  }
}

void walk(const Program& program) {
  touch(program.target);
  touch(program.metadata);
  touch(program.constants);
  require(!program.methods.empty());
  for (const Kernel& kernel : program.kernels) touch(kernel.image);
  for (const Buffer& buffer : program.buffers) {
    touch(buffer.name);
    require(buffer.bytes >= 0 && buffer.offset >= 0);
    require(buffer.offset + buffer.bytes <= end_of(program, buffer.kind));
  }
  walk_method(program, program.init);
  for (const Method& method : program.methods) walk_method(program, method);
  for (const WeightSpec& weight : program.weights) touch(weight.keys.at(0));
  walk_states(program);
}

// Numbers at which sums, products and comparisons turn over; or a small one, perhaps an index.
uint64_t telling_number(std::mt19937& random) {
  constexpr uint64_t kNumbers[] = {
      0xFFFFFFFF,        uint64_t{1} << 32, uint64_t{1} << 40, (uint64_t{1} << 40) + 1,
      uint64_t{1} << 62, ~uint64_t{0},      uint64_t{1} << 63, ~uint64_t{63}};
  return random() % 2 == 0 ? kNumbers[random() % std::size(kNumbers)] : random() % 130;
}

// Overwrites one field of a table with a telling number.
void mutate_field(std::vector<std::byte>& bytes, std::mt19937& random) {
  const uint64_t value = telling_number(random);
  const size_t size = random() % 2 == 0 ? 4 : 8;
  if (bytes.size() < size) return;
  const size_t at = random() % (bytes.size() / size) * size;
  std::memcpy(&bytes[at], &value, size);
}

// Lets libFuzzer change a few bytes in place, or the whole of a section, its size included.
void mutate_bytes(std::vector<std::byte>& bytes, std::mt19937& random) {
  const size_t size = bytes.size();
  auto* data = reinterpret_cast<uint8_t*>(bytes.data());
  if (random() % 2 == 0 && size != 0) {
    const size_t at = random() % size;
    const size_t length = std::min<size_t>(size - at, 1 + random() % 8);
    LLVMFuzzerMutate(data + at, length, length);
    return;
  }
  bytes.resize(size + 64);
  data = reinterpret_cast<uint8_t*>(bytes.data());
  bytes.resize(LLVMFuzzerMutate(data, size, bytes.size()));
}

// Changes the content of sections, or drops or repeats one; the places and sums stay right.
void mutate_sections(tests::NpubinImage& image, std::mt19937& random) {
  for (size_t times = 1 + random() % 3; times != 0 && !image.sections.empty(); --times) {
    const size_t index = random() % image.sections.size();
    switch (random() % 32) {
      case 0:
        image.sections.erase(image.sections.begin() + static_cast<ptrdiff_t>(index));
        break;
      case 1:
        image.sections.push_back(image.sections[index]);
        break;
      default:
        random() % 2 == 0 ? mutate_field(image.sections[index].bytes, random)
                          : mutate_bytes(image.sections[index].bytes, random);
    }
  }
}

}  // namespace
}  // namespace npusim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    npusim::walk(*npusim::Program::from_bytes(std::as_bytes(std::span(data, size))));
  } catch (const npusim::Error&) {  // a refusal is an answer
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  using npusim::tests::NpubinImage;
  std::mt19937 random(seed);
  auto image = NpubinImage::parse(std::as_bytes(std::span(data, size)));
  if (image && random() % 8 != 0) {
    npusim::mutate_sections(*image, random);
    const auto file = image->bytes();
    if (file.size() <= max_size) {
      std::memcpy(data, file.data(), file.size());
      return file.size();
    }
  }
  size = LLVMFuzzerMutate(data, size, max_size);
  if (random() % 4 != 0) NpubinImage::seal(std::as_writable_bytes(std::span(data, size)));
  return size;
}
