// Fuzzes what programs do: bytes that the loader and a device accept are run, over weights, inputs,
// states and sizes that the bytes choose, on every instruction set of this processor. Whatever the
// program, a run ends with results or an Error; nothing is read or written out of place (the
// sanitizers watch, and what callers lend has no byte to spare); and any number of threads leaves
// the same bytes. Programs that ask for more than a fuzzer has time or memory for are left out.
//
// An input is a header of 16 bytes and a .npubin file: a seed (u64), how arrays are filled (u8),
// the instruction set (u8), whether to compare with three threads (u8), where sizes lie (u8),
// zeros.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <random>

#include "cpp/cpu/isa.h"
#include "cpp/cpu/work.h"
#include "cpp/fuzz/mutate_program.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/program.h"
#include "cpp/runtime/weights.h"

namespace npusim {
namespace {

constexpr size_t kHeader = 16;
constexpr int64_t kMostBytes = 1 << 22, kMostWork = 1 << 22;

struct Choices {
  uint64_t seed;
  uint8_t fill, isa, compares, sizes;
};

using Bytes = std::vector<std::byte>;

// Arrays of any content: the same for the same seed, whatever the order of the calls.
class Filler {
 public:
  explicit Filler(const Choices& choices) : choices_(choices) {}

  Bytes bytes(DType dtype, size_t size, uint64_t salt) const {
    std::mt19937_64 random(choices_.seed + salt);
    const auto each = static_cast<size_t>(dtype_size(dtype));
    Bytes out(size);
    for (size_t at = 0; at + each <= size; at += each) element(dtype, &out[at], each, random);
    return out;
  }

 private:
  void element(DType dtype, std::byte* at, size_t size, std::mt19937_64& random) const {
    uint64_t bits = random();
    const bool integer = dtype >= DType::kInt64;
    switch (choices_.fill % 4) {
      case 0:  // small numbers, indices among them
        bits = integer ? random() % 5 - 1 : small_float(dtype, random() % 17);
        break;
      case 1:  // what sums and comparisons turn over at
        bits = integer ? edge_integer(random()) : edge_float(dtype, random());
        break;
      case 2:
        bits = 0;
        break;
      default:
        break;  // anything
    }
    if (dtype == DType::kBool) bits &= 1;
    std::memcpy(at, &bits, size);
  }
  static uint64_t edge_integer(uint64_t random) {
    constexpr uint64_t kEdges[] = {
        0,    1,    ~uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0} >> 1, 0x7F,
        0x80, 0xFF, 0x7FFF,       0x80000000,        0x7FFFFFFF};
    return kEdges[random % std::size(kEdges)];
  }
  // Zeros, ones, infinities, NaN, the least and the greatest, of either sign.
  static uint64_t edge_float(DType dtype, uint64_t random) {
    constexpr uint64_t kEdges[4][6] = {
        {0, 0x3F800000, 0x7F800000, 0x7FC00000, 1, 0x7F7FFFFF},
        {0, 0x3C00, 0x7C00, 0x7E00, 1, 0x7BFF},
        {0, 0x3F80, 0x7F80, 0x7FC0, 1, 0x7F7F},
        {0, 0x3FF0000000000000, 0x7FF0000000000000, 0x7FF8000000000000, 1, 0x7FEFFFFFFFFFFFFF}};
    const uint64_t sign = random >> 32 & 1;
    return kEdges[static_cast<size_t>(dtype)][random % 6] | sign << (dtype_size(dtype) * 8 - 1);
  }
  static uint64_t small_float(DType dtype, uint64_t step) {
    const float value = static_cast<float>(static_cast<int>(step) - 8) / 4;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    if (dtype == DType::kBfloat16) return bits >> 16;
    if (dtype == DType::kFloat16)
      return step == 8 ? 0 : 0x3C00 | (step & 3) << 8 | (bits >> 16 & 0x8000);
    if (dtype != DType::kFloat64) return bits;
    const double wide = value;
    uint64_t out = 0;
    std::memcpy(&out, &wide, sizeof out);
    return out;
  }

  Choices choices_;
};

// The checkpoint that a program asks for; now and then in another float dtype.
class MadeTensors final : public TensorSource {
 public:
  MadeTensors(const Program& program, const Choices& choices) {
    const Filler filler(choices);
    for (const WeightSpec& spec : program.weights) {
      CheckpointTensor& tensor = tensors_[std::string(spec.keys.front())];
      const bool converts =
          spec.dtype <= DType::kFloat64 && (choices.seed >> tensors_.size()) % 8 == 0;
      const DType dtype = converts ? static_cast<DType>(choices.fill / 4 % 4) : spec.dtype;
      const auto count = program.buffers[spec.buffer].bytes / dtype_size(spec.dtype);
      content_.push_back(
          filler.bytes(dtype, static_cast<size_t>(count * dtype_size(dtype)), content_.size()));
      tensor = {.name = std::string(spec.keys.front()),
                .dtype_name = "made",
                .dtype = dtype,
                .shape = spec.shape,
                .data = content_.back()};
    }
  }
  const CheckpointTensor* find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
  }
  std::vector<std::string_view> names() const override { return {}; }

 private:
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
  std::deque<Bytes> content_;
};

// Whether a fuzzer has the memory and the time for a program.
bool is_small(const Program& program) {
  int64_t bytes = program.persistent_bytes + program.state_bytes + program.init.arena_bytes;
  for (const Method& method : program.methods) bytes += method.arena_bytes;
  for (const Buffer& buffer : program.buffers) {
    const bool own = buffer.kind == BufferKind::kInput || buffer.kind == BufferKind::kOutput ||
                     buffer.kind == BufferKind::kWeight;
    if (own) bytes += buffer.bytes;
    if (bytes > kMostBytes) return false;
  }
  return true;
}

std::shared_ptr<Device> device_of(size_t isa, int threads) {
  static std::map<std::pair<size_t, int>, std::shared_ptr<Device>> devices;
  static const std::vector<cpu::Isa> isas = cpu::usable_isas();
  std::shared_ptr<Device>& device = devices[{isa % isas.size(), threads}];
  if (device == nullptr) {
    device = open_device("cpu", {{"threads", threads},
                                 {"isa", std::string(isas[isa % isas.size()].name)},
                                 {"max_work", kMostWork}});
  }
  return device;
}

// Values of a method's symbols: the least, the greatest, or some between them.
std::vector<int64_t> sizes_of(const Method& method, const Choices& choices) {
  std::mt19937_64 random(choices.seed);
  std::vector<int64_t> sizes;
  for (const Symbol& symbol : method.sizes.symbols) {
    const auto span = static_cast<uint64_t>(symbol.high - symbol.low) + 1;
    const int64_t between = symbol.low + static_cast<int64_t>(random() % span);
    const uint8_t way = choices.sizes % 3;
    sizes.push_back(way == 0 ? symbol.high : (way == 1 ? symbol.low : between));
  }
  return sizes;
}

Binding binding(Bytes& bytes) {
  return host_range(bytes);
}

// Runs every method twice, so that states are used; returns all that the runs left, and what they
// met.
std::vector<Bytes> outcome(const std::shared_ptr<const Program>& program, const Choices& choices,
                           int threads) {
  const auto device = device_of(choices.isa, threads);
  const auto weights =
      Weights::load(program, device, std::make_shared<MadeTensors>(*program, choices), {});
  Executor executor(program, device);
  State state(program, device);
  const Filler filler(choices);
  std::vector<Bytes> left;
  for (size_t run = 0; run < 2 * program->methods.size(); ++run) {
    const size_t method = run / 2;
    const std::vector<int64_t> sizes = sizes_of(program->methods[method], choices);
    const auto sized = executor.prepare(method, sizes);
    const Method& called = sizes.empty() ? program->methods[method] : sized->methods.front();
    std::deque<Bytes> arrays;
    std::vector<Binding> inputs, outputs;
    const auto add = [&](const TensorSpec& spec, std::vector<Binding>& bindings) {
      const auto size = static_cast<size_t>(sized->buffers[spec.buffer].bytes);
      arrays.push_back(filler.bytes(spec.dtype, size, 1000 + run * 64 + arrays.size()));
      bindings.push_back(binding(arrays.back()));
    };
    for (const TensorSpec& spec : called.inputs) add(spec, inputs);
    for (const TensorSpec& spec : called.outputs) add(spec, outputs);
    try {
      executor.run(method, inputs, outputs, weights.get(), &state, sizes);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kData) throw;
      return left;  // which of several tasks met its value first is open, and what the others did
    }
    left.insert(left.end(), arrays.begin(), arrays.end());
  }
  for (uint32_t i = 0; i < program->buffers.size(); ++i) {
    if (program->buffers[i].kind != BufferKind::kState) continue;
    left.emplace_back(static_cast<size_t>(program->buffers[i].bytes));
    state.read(i, 0, left.back());
  }
  return left;
}

void run(std::span<const std::byte> image, const Choices& choices) {
  const auto program = Program::from_bytes(image);
  if (!is_small(*program)) return;
  const std::vector<Bytes> alone = outcome(program, choices, 1);
  if (choices.compares % 4 == 0 && outcome(program, choices, 3) != alone) std::abort();
}

}  // namespace
}  // namespace npusim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < npusim::kHeader) return 0;
  npusim::Choices choices{};
  std::memcpy(&choices.seed, data, sizeof choices.seed);
  choices.fill = data[8];
  choices.isa = data[9];
  choices.compares = data[10];
  choices.sizes = data[11];
  const auto image = std::as_bytes(std::span(data, size)).subspan(npusim::kHeader);
  try {
    npusim::run(image, choices);
  } catch (const npusim::Error&) {  // a refusal is an answer
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::mt19937 random(seed);
  if (size <= npusim::kHeader || max_size <= npusim::kHeader || random() % 16 == 0) {
    const size_t header = std::min(npusim::kHeader, max_size);
    if (size < header) std::memset(data + size, 0, header - size);
    for (size_t i = 0; i < header; ++i) data[i] = static_cast<uint8_t>(random());
    return std::max(size, header);
  }
  if (random() % 2 == 0) data[8 + random() % 4] = static_cast<uint8_t>(random());
  return npusim::kHeader + npusim::tests::mutate_program(data + npusim::kHeader,
                                                         size - npusim::kHeader,
                                                         max_size - npusim::kHeader, random());
}
