// Devices, weights and executors, on programs made in memory. What needs real kernels and arrays
// is tested from Python, in tests/runtime.
#include "cpp/runtime/executor.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cpp/runtime/convert.h"
#include "cpp/runtime/sized_program.h"
#include "cpp/runtime/weights.h"
#include "tests/cpp/check.h"
#include "tests/cpp/copy_program.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Counted, for the promise that running allocates nothing. Not inlined: GCC would take the malloc
// after one and the free after the other for a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* block = std::malloc(size == 0 ? 1 : size)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept {
  std::free(block);
}

namespace npusim::tests {
namespace {

using Floats = std::vector<float>;

Binding bytes_of(Floats& values) {
  return host_range(std::as_bytes(std::span(values)));
}

std::shared_ptr<Device> cpu(int threads = 2) {
  return open_device("cpu", {{"threads", threads}});
}

class Tensors final : public TensorSource {
 public:
  void add(std::string name, DType dtype, std::vector<int64_t> shape, std::vector<std::byte> data) {
    data_[name] = std::move(data);
    tensors_[name] = {.name = name,
                      .dtype_name = std::string(dtype_name(dtype)),
                      .dtype = dtype,
                      .shape = std::move(shape),
                      .data = data_[name]};
  }
  void add(std::string name, const Floats& values) {
    const auto bytes = std::as_bytes(std::span(values));
    add(std::move(name), DType::kFloat32, {static_cast<int64_t>(values.size())},
        {bytes.begin(), bytes.end()});
  }
  const CheckpointTensor* find(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    return found == tensors_.end() ? nullptr : &found->second;
  }
  std::vector<std::string_view> names() const override {
    std::vector<std::string_view> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }

 private:
  std::map<std::string, std::vector<std::byte>> data_;
  std::map<std::string, CheckpointTensor> tensors_;
};

CopyProgram chain(int64_t count) {
  CopyProgram program(count);
  const uint32_t x = program.input(), y = program.output();
  const uint32_t between = program.buffer(BufferKind::kTemp);
  program->methods[0].arena_bytes = count * 4;
  program.copy(x, between);
  program.copy(between, y);
  return program;
}

void runs_and_observes() {
  CopyProgram program = chain(1000);
  Executor executor(program.get(), cpu());
  Floats x(1000, 3.0f), y(1000);
  const Binding in = bytes_of(x), out = bytes_of(y);
  executor.run(0, {&in, 1}, {&out, 1}, nullptr);
  check(x == y, "copied");
  std::vector<size_t> seen;
  std::fill(y.begin(), y.end(), 0.0f);
  executor.observe(0, {&in, 1}, {&out, 1}, nullptr, [&](size_t index) {
    seen.push_back(index);
    check(std::memcmp(address_of(*executor.buffer(2)), x.data(), 4000) == 0, "a tapped temporary");
    check((y[0] == 3.0f) == (index == 1), "the output is written by the second command");
  });
  check(seen == std::vector<size_t>{0, 1}, "observed commands");
}

void running_allocates_nothing() {
  CopyProgram program = chain(1 << 20);
  Executor executor(program.get(), cpu(3));
  Floats x(1 << 20), y(1 << 20), other(1 << 20);
  const Binding in = bytes_of(x), out = bytes_of(y), elsewhere = bytes_of(other);
  const int64_t before = allocations;
  for (int i = 0; i < 10; ++i) executor.run(0, {&in, 1}, {i % 2 ? &out : &elsewhere, 1}, nullptr);
  check(allocations == before, "allocations");
}

void refuses_wrong_calls() {
  CopyProgram program = chain(8);
  Executor executor(program.get(), cpu());
  Floats x(8), y(8), small(7);
  const Binding in = bytes_of(x), out = bytes_of(y), tight = bytes_of(small);
  const auto run = [&](std::span<const Binding> inputs, std::span<const Binding> outputs) {
    return [&executor, inputs, outputs] { executor.run(0, inputs, outputs, nullptr); };
  };
  check_refused(ErrorCode::kInput, "1 inputs, got 0", run({}, {&out, 1}));
  check_refused(ErrorCode::kInput, "1 outputs, got 0", run({&in, 1}, {}));
  check_refused(ErrorCode::kInput, "needs 32 bytes, got 28", run({&tight, 1}, {&out, 1}));
  check_refused(ErrorCode::kInput, "no method decode", [&] { executor.method_index("decode"); });
  check_refused(ErrorCode::kInput, "no buffer 99", [&] { executor.buffer(99); });
  check_refused(ErrorCode::kBusy, "another thread", [&] {
    executor.observe(0, {&in, 1}, {&out, 1}, nullptr, [&](size_t) { run({&in, 1}, {&out, 1})(); });
  });
  run({&in, 1}, {&out, 1})();  // still usable
}

void refuses_methods_there_are_not() {
  CopyProgram program = chain(8);
  Executor executor(program.get(), cpu());
  Floats x(8), y(8);
  const Binding in = bytes_of(x), out = bytes_of(y);
  std::vector<double> seconds(2);
  const std::span<const Binding> inputs(&in, 1), outputs(&out, 1);
  for (const size_t method : {size_t{1}, size_t{99}, SIZE_MAX}) {
    const auto refused = [&](auto action) {
      check_refused(ErrorCode::kInput, "no method", action);
    };
    refused([&] { executor.run(method, inputs, outputs, nullptr); });
    refused([&] { executor.enqueue(method, inputs, outputs, nullptr, nullptr, 0); });
    refused([&] { executor.observe(method, inputs, outputs, nullptr, [](size_t) {}); });
    refused([&] { executor.time(method, inputs, outputs, nullptr, seconds); });
    refused([&] { executor.prepare(method, {}); });
    refused([&] { executor.settle(method); });
    refused([&] { executor.can_fail(method); });
    refused([&] { executor.implementations(method); });
    refused([&] { at_sizes(program.get(), method, {}); });
  }
  executor.time(0, inputs, outputs, nullptr, seconds);  // the last that there is, and usable
}

void refuses_bytes_outside_memory() {
  const int64_t kMost = INT64_MAX, kLeast = INT64_MIN;
  for (const auto& device : {cpu(), open_device("null")}) {
    const auto memory = device->allocate(8), other = device->allocate(8);
    std::array<std::byte, 9> bytes = {};
    const auto refused = [&](auto action) {
      check_refused(ErrorCode::kInput, "of 8 bytes", action);
    };
    for (const int64_t offset : {int64_t{-1}, int64_t{1}, int64_t{8}, kMost, kLeast}) {
      const std::span<std::byte> eight(bytes.data(), 8);
      refused([&] { device->upload(*memory, offset, eight); });
      refused([&] { device->download(eight, *memory, offset); });
      refused([&] { device->copy(*memory, offset, *other, 0, 8); });
      refused([&] { device->copy(*memory, 0, *other, offset, 8); });
    }
    refused([&] { device->upload(*memory, 0, bytes); });
    refused([&] { device->copy(*memory, 0, *other, 0, -1); });
    refused([&] { device->copy(*memory, 4, *other, 4, kMost); });
    device->upload(*memory, 8, {});
    device->upload(*memory, 4, std::span(bytes).first(4));
    device->copy(*memory, 1, *memory, 0, 7);  // ranges of one memory may overlap
  }
}

void refuses_buffers_there_are_not() {
  CopyProgram program(8);
  const uint32_t weight = program.weight("w"), output = program.output();
  program.copy(weight, output);
  const auto device = cpu();
  auto tensors = std::make_shared<Tensors>();
  tensors->add("w", {1, 2, 3, 4, 5, 6, 7, 8});
  const auto weights = Weights::load(program.get(), device, std::move(tensors), {});
  check(weights->range(weight) && !weights->range(output), "where weights lie");
  check_refused(ErrorCode::kInput, "no buffer 2", [&] { weights->range(2); });
  const State state(program.get(), device);
  check_refused(ErrorCode::kInput, "buffer 0 is no state", [&] { state.range(weight); });
  check_refused(ErrorCode::kInput, "buffer 99 is no state", [&] { state.range(99); });
}

void refuses_unsound_commands() {
  for (const char* what : {"shape", "stride", "size", "read only"}) {
    CopyProgram program = chain(8);
    const std::string_view kind = what;
    if (kind == "shape") program.params().shape[0] = 9;
    if (kind == "stride") program.params().x_strides[0] = -1;
    if (kind == "size") program->methods[0].commands[0].params = {};
    std::array<Operand, 2> operands = {Operand{0, Access::kRead, 0}, Operand{1, Access::kRead, 0}};
    if (kind == "read only") program->methods[0].commands[0].operands = operands;
    check_refused(ErrorCode::kFormat, "net.py:7", [&] { Executor(program.get(), cpu()); });
  }
  CopyProgram program = chain(8);
  program->kernels[0].name = "unheard";
  check_refused(ErrorCode::kVersion, "unheard", [&] { Executor(program.get(), cpu()); });
}

void copies_unaligned_parameters() {
  CopyProgram program = chain(8);
  std::vector<std::byte> shifted(sizeof(abi::CopyParams) + 1);
  std::memcpy(shifted.data() + 1, &program.params(), sizeof(abi::CopyParams));
  program->methods[0].commands[0].params = std::span(shifted).subspan(1);
  Executor executor(program.get(), cpu());
  Floats x(8, 5.0f), y(8);
  const Binding in = bytes_of(x), out = bytes_of(y);
  executor.run(0, {&in, 1}, {&out, 1}, nullptr);
  check(x == y, "copied");
}

CopyProgram weighted() {
  CopyProgram program(4);
  const uint32_t y = program.output(), w = program.weight("w");
  const uint32_t kept = program.buffer(BufferKind::kPersistent);
  program->persistent_bytes = 64;
  program.copy_once(w, kept);
  program.copy(kept, y);
  return program;
}

void prepares_weights_once_and_lets_go_of_them() {
  CopyProgram program = weighted();
  const auto device = cpu();
  auto tensors = std::make_shared<Tensors>();
  tensors->add("w", {1, 2, 3, 4});
  tensors->add("unused", {1});
  const std::weak_ptr<Tensors> source = tensors;
  const auto weights = Weights::load(program.get(), device, std::move(tensors), {});
  check(source.expired(), "the checkpoint is released when nobody reads it in place");
  check(weights->extra() == std::vector<std::string>{"unused"}, "extra tensors");
  Executor executor(program.get(), device);
  Floats y(4);
  const Binding out = bytes_of(y);
  executor.run(0, {}, {&out, 1}, weights.get());
  check(y == Floats{1, 2, 3, 4}, "weights arrive");
  check_refused(ErrorCode::kWeights, "load them", [&] { executor.run(0, {}, {&out, 1}, nullptr); });
  Executor stranger(weighted().get(), device);
  check_refused(ErrorCode::kWeights, "another program",
                [&] { stranger.run(0, {}, {&out, 1}, weights.get()); });
}

void keeps_weights_that_are_read_in_place() {
  CopyProgram program(4);
  const uint32_t y = program.output();
  program.copy(program.weight("w"), y);
  const auto device = cpu();
  auto tensors = std::make_shared<Tensors>();
  tensors->add("w", {1, 2, 3, 4});
  const std::weak_ptr<Tensors> source = tensors;
  auto weights = Weights::load(program.get(), device, std::move(tensors), {});
  check(!source.expired(), "the checkpoint stays while weights point into it");
  weights.reset();
  check(source.expired(), "and goes with them");
}

void converts_float_weights_and_refuses_others() {
  CopyProgram program = weighted();
  const auto load = [&](DType dtype, std::vector<int64_t> shape, size_t bytes, bool check_nan) {
    auto tensors = std::make_shared<Tensors>();
    tensors->add("w", dtype, std::move(shape), std::vector<std::byte>(bytes, std::byte{0xFF}));
    return Weights::load(program.get(), cpu(), tensors,
                         {.check_nan = check_nan, .copy = false, .names = {}, .progress = {}});
  };
  load(DType::kFloat64, {4}, 32, false);
  load(DType::kFloat16, {4}, 8, false);
  load(DType::kBfloat16, {4}, 8, false);
  const auto code = ErrorCode::kWeights;
  check_refused(code, "NaN: w", [&] { load(DType::kBfloat16, {4}, 8, true); });
  check_refused(code, "wrong shape: w is [2, 2]",
                [&] { load(DType::kFloat32, {2, 2}, 16, false); });
  check_refused(code, "wrong dtype: w is int32", [&] { load(DType::kInt32, {4}, 16, false); });
  std::array<std::byte, 16> from = {}, to = {};
  for (const size_t bytes : {15, 12, 0}) {  // 4 of float32 become 8
    check_refused(ErrorCode::kInput, "do not become", [&] {
      convert_floats(from, DType::kFloat32, std::span(to).first(bytes), DType::kFloat16);
    });
  }
  convert_floats(from, DType::kFloat32, std::span(to).first(8), DType::kFloat16);
  check_refused(code, "missing: w", [&] { Weights::load(program.get(), cpu(), no_tensors(), {}); });
}

void null_device_leaves_outputs_alone() {
  CopyProgram program = weighted();
  const auto device = open_device("null");
  auto tensors = std::make_shared<Tensors>();
  tensors->add("w", {1, 2, 3, 4});
  const auto weights = Weights::load(program.get(), device, tensors, {});
  Executor executor(program.get(), device);
  Floats y(4, 9.0f);
  const Binding out = bytes_of(y);
  executor.run(0, {}, {&out, 1}, weights.get());
  check(y == Floats(4, 9.0f), "untouched");
  size_t seen = 0;
  executor.observe(0, {}, {&out, 1}, weights.get(), [&](size_t) { ++seen; });
  check(seen == 1, "observed");
}

void devices_are_known_by_name() {
  const auto names = device_names();
  check(names.front() == "cpu" && names.back() == "null", "names");
  check_refused(ErrorCode::kDevice, "it has: cpu, ", [] { open_device("gpu"); });
  check_refused(ErrorCode::kDevice, "threads", [] { cpu(-1); });
  check_refused(ErrorCode::kDevice, "threads", [] { cpu(1 << 30); });
  const auto memory = cpu()->allocate(3'000'000);
  check(memory->range().offset % 64 == 0, "alignment");
  check(memory->host()[2'999'999] == std::byte{0}, "zeroed");
  check_refused(ErrorCode::kDevice, "bytes", [] { cpu()->allocate(int64_t{1} << 60); });
}

void options_are_known_by_name() {
  const auto refused = [](const char* what, std::string_view device, const DeviceOptions& options) {
    check_refused(ErrorCode::kDevice, what, [&] { open_device(device, options); });
  };
  refused("the device cpu has no option ordinal; it has: threads, pin_threads, isa, max_work",
          "cpu", {{"threads", 1}, {"ordinal", 0}});
  refused("the device null has no option threads; it has: max_memory", "null", {{"threads", 0}});
  refused("the option threads of the device cpu is a whole number, not a text", "cpu",
          {{"threads", "2"}});
  refused("the option pin_threads of the device cpu is true or false, not a whole number", "cpu",
          {{"pin_threads", 1}});
  refused("the option isa of the device cpu is a text, not true or false", "cpu", {{"isa", true}});
  refused("threads must lie between", "cpu", {{"threads", INT64_MAX}});
  refused("max_work is a count", "cpu", {{"max_work", -1}});
  refused("there is no device gpu", "gpu", {{"threads", 1}});
  check(device_options("cpu").size() == 5 && device_options("null").size() == 1, "what there is");
  check(open_device("cpu", {{"threads", 3}})->description().ends_with(", 3 threads"), "taken");
}

void ranges_hold_to_their_ends() {
  constexpr int64_t kMost = INT64_MAX, kLeast = INT64_MIN;
  const MemoryRange range{7, 100, 10};
  check(range.part(0, 10) == range && range.part(10, 0) == MemoryRange{7, 110, 0}, "its ends");
  check(range.part(3, 4) == MemoryRange{7, 103, 4}, "a part");
  const std::pair<int64_t, int64_t> outside[] = {{-1, 1}, {0, 11},    {11, 0},    {10, 1},
                                                 {1, 10}, {0, kMost}, {kMost, 1}, {kLeast, 1},
                                                 {0, -1}, {5, kLeast}};
  for (const auto& [from, length] : outside) {
    check_refused(ErrorCode::kInput, "leave a memory of 10 bytes",
                  [&] { range.part(from, length); });
  }
  const auto meets = [&](const MemoryRange& other) {
    check(range.overlaps(other) == other.overlaps(range), "each the other");
    return range.overlaps(other);
  };
  check(meets({7, 109, 1}) && meets({7, 91, 10}) && meets({7, 0, 1000}) && meets(range), "meet");
  check(!meets({7, 110, 5}) && !meets({7, 90, 10}) && !meets({7, 105, 0}), "beside each other");
  check(!meets({8, 100, 10}) && !meets({0, 100, 10}), "in other storage");
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  runs_and_observes();
  running_allocates_nothing();
  refuses_wrong_calls();
  refuses_methods_there_are_not();
  refuses_bytes_outside_memory();
  refuses_buffers_there_are_not();
  refuses_unsound_commands();
  copies_unaligned_parameters();
  prepares_weights_once_and_lets_go_of_them();
  keeps_weights_that_are_read_in_place();
  converts_float_weights_and_refuses_others();
  null_device_leaves_outputs_alone();
  devices_are_known_by_name();
  options_are_known_by_name();
  ranges_hold_to_their_ends();
  return exit_code();
}
