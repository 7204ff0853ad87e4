// The program loader: the golden file is read for what it is; every kind of damage is refused.
// `tests/format` does the same to the Python reader, and compares the two.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cpp/fuzz/npubin_image.h"
#include "cpp/runtime/program.h"
#include "tests/cpp/check.h"

namespace npusim::tests {
namespace {

using Bytes = std::vector<std::byte>;
const std::filesystem::path kGolden = NPUSIM_SOURCE_DIR "/tests/format/golden/v1.0.npubin";

Bytes read_golden() {
  std::ifstream file(kGolden, std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(chars));
  return {bytes.begin(), bytes.end()};
}

void check_golden(const Program& program) {
  check(program.target == "cpu", "target");
  check(program.metadata.starts_with("{\"producer\":\"npusim\""), "metadata");
  check(program.kernels.size() == 3 && program.kernels[0].name == "pack_b", "kernels");
  check(program.kernels[1].schema == "m:i64 n:i64 k:i64", "schema");
  check(program.kernels[1].image.empty() && program.kernels[2].image.size() == 5, "images");
  check(program.buffers.size() == 10 && program.buffers[9].name == "größe", "buffers");
  check(program.buffers[6].kind == BufferKind::kPersistent && program.buffers[6].bytes == 256 &&
            program.buffers[6].offset == 64,
        "a buffer");
  check(program.methods.size() == 2 && program.methods[1].name == "decode", "methods");
  check(program.init.commands.size() == 1 && program.init.commands[0].params.size() == 9, "init");
  check(program.weights.size() == 2 && program.weights[0].keys.size() == 2, "weights");
  check(program.weights[0].keys[1] == "head.weight", "a second key");
  check(program.weights[1].shape == std::vector<int64_t>{0, 7}, "an empty weight");
  check(program.nodes.size() == 3 && program.nodes[1].source == "linear, model.py:12", "nodes");
  check(program.constants.size() == 80 && program.constants[79] == std::byte{79}, "constants");
  check(program.persistent_bytes == 320 && program.state_bytes == 192, "arenas");
}

void check_golden_forward(const Method& forward) {
  check(forward.arena_bytes == 64 && forward.commands.size() == 2, "forward");
  const Command& second = forward.commands[1];
  check(second.kernel == 2 && second.node == 1 && second.params.empty(), "a command");
  check(second.operands.size() == 3 && second.operands[0].buffer == 2 &&
            second.operands[0].offset == 39 && second.operands[0].access == Access::kReadWrite,
        "its operands");
  check(forward.inputs[0].shape == std::vector<int64_t>{2, 2} &&
            forward.inputs[0].alloc_shape == std::vector<int64_t>{2, 3} &&
            forward.inputs[0].dtype == DType::kFloat32,
        "a padded input");
}

void reads_golden() {
  for (const auto& program : {Program::open(kGolden), Program::from_bytes(read_golden())}) {
    check_golden(*program);
    check_golden_forward(program->methods[0]);
    const auto address = [](const auto& span) { return reinterpret_cast<uintptr_t>(span.data()); };
    check(address(program->constants) % 4096 == 0, "constants start on a page");
    check(address(program->kernels[2].image) % 64 == 0, "images are aligned");
    check(address(program->methods[1].commands[0].params) % 8 == 0, "parameters are aligned");
  }
}

void refuses(const Bytes& file, std::string_view words, ErrorCode code = ErrorCode::kFormat,
             const std::source_location at = std::source_location::current()) {
  check_refused(code, words, [&] { Program::from_bytes(file); }, at);
}

void refuses_every_truncation() {
  const Bytes whole = read_golden();
  for (size_t size = 0; size < whole.size(); ++size) {
    refuses(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)), "");
  }
}

void refuses_every_bit_flip() {
  Bytes file = read_golden();
  for (size_t bit = 0; bit < file.size() * 8; ++bit) {
    const std::byte mask = std::byte{1} << (bit % 8);
    file[bit / 8] ^= mask;
    try {
      Program::from_bytes(file);
      check(false, "accepted with bit " + std::to_string(bit) + " changed");
    } catch (const Error&) {
    }
    file[bit / 8] ^= mask;
  }
}

// The golden file with some bytes of one section replaced, and right checksums.
template <typename T>
Bytes with(uint32_t section, size_t at, T value) {
  auto image = NpubinImage::parse(read_golden());
  NpubinImage::store(image->find(section)->bytes, at, value);
  return image->bytes();
}

constexpr uint32_t kProgram = 1, kStrings = 2, kKernels = 3, kBuffers = 5, kMethods = 6,
                   kCommands = 7, kOperands = 8, kParams = 9, kSpecs = 10, kWeights = 11,
                   kKeys = 12, kDims = 13, kNodes = 14, kMetadata = 16;
constexpr int64_t kTooMany = (int64_t{1} << 40) + 1;

void refuses_bad_header() {
  const auto patched = [](size_t at, auto value) {
    Bytes file = read_golden();
    NpubinImage::store(file, at, value);
    NpubinImage::seal(file);
    return file;
  };
  refuses({}, "it is empty");
  refuses(patched(0, uint8_t{0}), "not a .npubin file");
  refuses(patched(8, uint16_t{2}), "format 2.0; this npusim reads 1.0 to 1.4. Upgrade",
          ErrorCode::kVersion);
  refuses(patched(8, uint16_t{0}), "Compile the model again", ErrorCode::kVersion);
  refuses(patched(16, uint64_t{1} << 63), "features", ErrorCode::kVersion);
  refuses(patched(12, uint32_t{0}), "0 sections");
  refuses(patched(12, uint32_t{65}), "65 sections");
  refuses(patched(24, uint64_t{1}), "appended to");
  refuses(patched(24, uint64_t{1} << 60), "cut short");
  refuses(patched(40, uint8_t{1}), "reserved");
  check(Program::from_bytes(patched(10, uint16_t{9})) != nullptr, "a later minor version loads");
}

void refuses_bad_sections() {
  const auto golden = *NpubinImage::parse(read_golden());
  auto image = golden;
  image.sections.push_back({99, 1, Bytes(5)});
  check(Program::from_bytes(image.bytes()) != nullptr, "an unknown optional section is skipped");
  image.sections.back().flags = 0;
  refuses(image.bytes(), "needs section 99", ErrorCode::kVersion);
  image.sections.back().flags = 4;
  refuses(image.bytes(), "unknown flags");
  image = golden;
  image.sections.push_back(image.sections[0]);
  refuses(image.bytes(), "appears twice");
  image = golden;
  image.find(kBuffers)->flags = 1;
  refuses(image.bytes(), "flags are not those");
  for (const uint32_t needed : {kProgram, kStrings, kMethods}) {
    image = golden;
    std::erase_if(image.sections, [&](const SectionImage& s) { return s.id == needed; });
    refuses(image.bytes(), "is missing");
  }
}

void refuses_bad_places() {
  const auto patched = [](size_t at, auto value) {
    Bytes file = read_golden();
    NpubinImage::store(file, at, value);
    NpubinImage::seal(file);
    return file;
  };
  const Bytes golden = read_golden();
  const auto second = NpubinImage::load<uint64_t>(golden, 96 + 8);
  refuses(patched(96 + 8, second + 64), "out of place");
  refuses(patched(96 + 8, second - 64), "out of place");
  refuses(patched(96 + 8, ~uint64_t{63}), "out of place");
  refuses(patched(96 + 16, ~uint64_t{0} - second), "out of place");
  refuses(patched(96 + 28, uint32_t{1}), "reserved");
  refuses(patched(second - 1, uint8_t{1}), "padding");
  Bytes longer = golden;
  longer.push_back(std::byte{0});
  NpubinImage::store<uint64_t>(longer, 24, longer.size());
  NpubinImage::seal(longer);
  refuses(longer, "follow the last section");
}

void refuses_bad_tables() {
  refuses(with(kStrings, 0, uint32_t{0xFFFFFFFF}), "cut short");
  refuses(with(kStrings, 4, uint32_t{1}), "cut short");
  refuses(with(kStrings, 8, uint64_t{1} << 50), "blob 0 is out of place");
  refuses(with(kStrings, 16, uint64_t{0}), "blob 1 is out of place");
  refuses(with(kParams, 8, uint64_t{7}), "out of place");
  auto image = *NpubinImage::parse(read_golden());
  auto& strings = image.find(kStrings)->bytes;
  strings.back() = std::byte{0xFF};
  refuses(image.bytes(), "not UTF-8");
  strings.back() = std::byte{0};
  refuses(image.bytes(), "NUL");
  strings.back() = strings[strings.size() - 2];
  strings.push_back(std::byte{65});
  refuses(image.bytes(), "follow the last blob");
  refuses(with(kMetadata, 0, uint8_t{0xFF}), "not UTF-8");
  image = *NpubinImage::parse(read_golden());
  image.find(kOperands)->bytes.pop_back();
  refuses(image.bytes(), "no multiple of 16");
}

void refuses_bad_records() {
  refuses(with(kProgram, 0, uint32_t{999}), "string 999 does not exist");
  refuses(with(kProgram, 4, uint32_t{1}), "1 ranks; 0 (for one), or 2");
  refuses(with(kProgram, 4, uint32_t{65}), "65 ranks");
  refuses(with(kKernels, 8, uint32_t{1}), "image 1 does not exist");
  refuses(with(kBuffers, 0, uint32_t{7}), "kind 7");
  refuses(with(kMethods, 4, uint32_t{0xFFFFFFFF}), "records are asked for");
  refuses(with(kMethods, 4, uint32_t{0}), "belongs to nothing");
  refuses(with(kMethods, 8, uint32_t{9}), "records are asked for");
  refuses(with(kCommands, 8, uint32_t{99}), "params 99 does not exist");
  refuses(with(kCommands, 12, uint32_t{99}), "records are asked for");
  refuses(with(kCommands, 28, uint32_t{1}), "reserved");
  refuses(with(kOperands, 4, uint32_t{3}), "access 3");
  refuses(with(kSpecs, 8, uint32_t{10}), "dtype code 10");
  refuses(with(kSpecs, 12, uint32_t{33}), "33 dimensions");
  refuses(with(kWeights, 12, uint32_t{99}), "records are asked for");
  refuses(with(kKeys, 0, uint32_t{999}), "string 999");
  refuses(with(kNodes, 12, uint32_t{1}), "reserved");
}

void refuses_bad_buffers() {
  const auto field = [](size_t buffer, size_t at) { return 24 * buffer + at; };
  refuses(with(kProgram, 8, kTooMany), "persistent_bytes");
  refuses(with(kProgram, 16, int64_t{-1}), "state_bytes");
  refuses(with(kBuffers, field(2, 8), int64_t{-1}), "buffer 2: size");
  refuses(with(kBuffers, field(2, 8), kTooMany), "buffer 2: size");
  refuses(with(kBuffers, field(2, 16), int64_t{-64}), "buffer 2: offset");
  refuses(with(kBuffers, field(2, 16), int64_t{32}), "multiple of 64");
  refuses(with(kBuffers, field(0, 16), int64_t{64}), "offset is not zero");
  refuses(with(kBuffers, field(2, 8), int64_t{65}), "passes the method's arena");
  refuses(with(kBuffers, field(5, 8), int64_t{17}), "pass the end at 80");
  refuses(with(kBuffers, field(6, 8), int64_t{257}), "pass the end at 320");
  refuses(with(kBuffers, field(7, 8), int64_t{65}), "pass the end at 192");
}

void refuses_bad_methods() {
  refuses(with(kMethods, 16, kTooMany), "init: arena");
  refuses(with(kMethods, 24 + 16, int64_t{0}), "passes the method's arena");
  // decode's name is that of forward.
  const auto forward =
      NpubinImage::load<uint32_t>(NpubinImage::parse(read_golden())->find(kMethods)->bytes, 24);
  refuses(with(kMethods, 48, forward), "a name appears twice");
  refuses(with(kCommands, 32, uint32_t{3}), "method 'forward', command 0: there is no kernel 3");
  refuses(with(kCommands, 32 + 4, uint32_t{3}), "there is no node 3");
  // Operands 0, 1 are init's; 2 … 7 forward's.
  refuses(with(kOperands, 0, uint32_t{10}), "its buffer does not exist");
  refuses(with(kOperands, 4, uint32_t{1}), "init, command 0, operand 0: this access");
  refuses(with(kOperands, 0, uint32_t{0}), "this access");
  refuses(with(kOperands, 0, uint32_t{7}), "this access");
  refuses(with(kOperands, 16 * 2 + 4, uint32_t{2}), "this access");
  refuses(with(kOperands, 16 * 3 + 4, uint32_t{1}), "this access");
  refuses(with(kOperands, 16 * 6 + 4, uint32_t{1}), "this access");
  refuses(with(kOperands, 16 * 2 + 8, int64_t{24}), "outside its buffer");
  refuses(with(kOperands, 16 * 2 + 8, int64_t{-1}), "outside its buffer");
  refuses(with(kOperands, 16 * 2, uint32_t{8}), "no input or output of the method");
}

void refuses_bad_tensors() {
  // DIMS: x is [2, 2] in [2, 3]; y [4] in [4]; …; the weights are last: [4, 3], [0, 7].
  const auto dims = NpubinImage::parse(read_golden())->find(kDims)->bytes.size();
  refuses(with(kDims, 0, int64_t{3}), "does not fit");
  refuses(with(kDims, 0, int64_t{-1}), "does not fit");
  refuses(with(kDims, 16, int64_t{-2}), "a dimension of -2");
  refuses(with(kDims, 24, int64_t{4}), "it takes 32 bytes, its buffer has 24");
  refuses(with(kDims, 24, int64_t{1} << 40), "more than 2^40 bytes");
  check(Program::from_bytes(with(kDims, dims - 8, int64_t{1} << 40)) != nullptr,
        "an empty tensor may be as large as allowed");
  refuses(with(kDims, dims - 8, kTooMany), "a dimension of");
  refuses(with(kDims, dims - 32, int64_t{5}), "weight 0: it takes 60 bytes");
  refuses(with(kSpecs, 4, uint32_t{1}), "its buffer is OUTPUT, not INPUT");
  refuses(with(kSpecs, 4, uint32_t{77}), "there is no buffer 77");
  refuses(with(kWeights, 0, uint32_t{4}), "weight 0: it takes 48 bytes");
  refuses(
      with(kKeys, 4,
           NpubinImage::load<uint32_t>(NpubinImage::parse(read_golden())->find(kKeys)->bytes, 0)),
      "a name appears twice");
  refuses(with(kWeights, 16, uint32_t{3}), "takes 0 bytes");
}

void names_the_file() {
  check_refused(ErrorCode::kIo, "missing.npubin", [] { Program::open("missing.npubin"); });
  check_refused(ErrorCode::kIo, "it is a folder", [] { Program::open("."); });
  check_refused(ErrorCode::kFormat, "README.md: This is not",
                [] { Program::open(NPUSIM_SOURCE_DIR "/README.md"); });
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  reads_golden();
  refuses_every_truncation();
  refuses_every_bit_flip();
  refuses_bad_header();
  refuses_bad_sections();
  refuses_bad_places();
  refuses_bad_tables();
  refuses_bad_records();
  refuses_bad_buffers();
  refuses_bad_methods();
  refuses_bad_tensors();
  names_the_file();
  return exit_code();
}
