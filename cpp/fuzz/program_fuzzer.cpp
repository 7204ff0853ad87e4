// Fuzzes the .npubin loader: whatever the bytes, Program::from_bytes refuses them with an Error or
// returns a Program all of whose views, indices and ranges hold. Mutations keep the container
// sound most of the time, or the checksums would stop everything at the door.
#include <cstdint>
#include <cstdlib>
#include <random>

#include "cpp/fuzz/npubin_image.h"
#include "cpp/runtime/error.h"
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

void walk(const Program& program) {
  touch(program.target);
  touch(program.metadata);
  touch(program.constants);
  require(!program.methods.empty());
  for (const Kernel& kernel : program.kernels) touch(kernel.image);
  for (const Buffer& buffer : program.buffers) {
    touch(buffer.name);
    if (buffer.kind == BufferKind::kConstant) {
      touch(program.constants.subspan(static_cast<size_t>(buffer.offset),
                                      static_cast<size_t>(buffer.bytes)));
    }
  }
  walk_method(program, program.init);
  for (const Method& method : program.methods) walk_method(program, method);
  for (const WeightSpec& weight : program.weights) touch(weight.keys.at(0));
}

// Changes one section's content, or drops or repeats one; the places and sums stay right.
size_t mutate_content(tests::NpubinImage image, std::span<uint8_t> out, std::mt19937& random) {
  const auto below = [&](size_t n) { return random() % n; };
  const size_t index = below(image.sections.size());
  const size_t what = below(32);
  if (what == 0) {
    image.sections.erase(image.sections.begin() + static_cast<ptrdiff_t>(index));
  } else if (what == 1) {
    image.sections.push_back(image.sections[index]);
  } else {
    auto& bytes = image.sections[index].bytes;
    const size_t size = bytes.size();
    bytes.resize(size + below(3) * 64);
    // Either the whole section, or a few bytes of it: records are small.
    const size_t start = below(2) == 0 || size == 0 ? 0 : below(size);
    const size_t end = start == 0 ? size : std::min(size, start + 1 + below(8));
    auto* data = reinterpret_cast<uint8_t*>(bytes.data());
    const size_t room = start == 0 ? bytes.size() : end - start;
    if (room == 0) return 0;
    const size_t changed = LLVMFuzzerMutate(data + start, end - start, room);
    bytes.resize(start == 0 ? changed : size);
  }
  const auto file = image.bytes();
  if (file.size() > out.size()) return 0;
  std::memcpy(out.data(), file.data(), file.size());
  return file.size();
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
  const auto image = NpubinImage::parse(std::as_bytes(std::span(data, size)));
  if (image && !image->sections.empty() && random() % 8 != 0) {
    const size_t changed = npusim::mutate_content(*image, {data, max_size}, random);
    if (changed != 0) return changed;
  }
  size = LLVMFuzzerMutate(data, size, max_size);
  if (random() % 4 != 0) NpubinImage::seal(std::as_writable_bytes(std::span(data, size)));
  return size;
}
