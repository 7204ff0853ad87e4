// What the runtime takes for granted of a device: nothing that one as Apple's GPUs are has not
// (unified_device.h). Language sessions on it are in test_generate_runs.cpp, Python's in
// tests/runtime/test_unified_device.py.
#include "tests/cpp/unified_device.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpp/runtime/executor.h"
#include "cpp/runtime/state.h"
#include "cpp/runtime/weights.h"
#include "tests/cpp/chain_language_model.h"
#include "tests/cpp/check.h"
#include "tests/cpp/copy_program.h"

namespace npusim::tests {
namespace {

using Floats = std::vector<float>;
using Options = UnifiedDevice::Options;

std::shared_ptr<UnifiedDevice> unified(Options options = {}) {
  return std::make_shared<UnifiedDevice>(open_device("cpu", {{"threads", 2}}), options);
}

std::shared_ptr<Memory> put(Device& device, const Floats& values) {
  auto memory = device.allocate(std::ssize(values) * 4);
  device.upload(*memory, 0, std::as_bytes(std::span(values)));
  return memory;
}

// What the host sees now, whether or not it is computed.
Floats seen(const Memory& memory) {
  Floats values(static_cast<size_t>(memory.bytes()) / 4);
  std::memcpy(values.data(), memory.host(), values.size() * 4);
  return values;
}

Floats got(Device& device, const Memory& memory) {
  Floats values(static_cast<size_t>(memory.bytes()) / 4);
  device.download(std::as_writable_bytes(std::span(values)), memory, 0);
  return values;
}

// One tensor, aligned as a mapped file's are, or one float off.
class OneTensor final : public TensorSource {
 public:
  OneTensor(Floats values, bool aligned) : count_(std::ssize(values)) {
    float* const at = &memory_.values[aligned ? 0 : 1];
    std::copy(values.begin(), values.end(), at);
    tensor_ = {.name = "w",
               .dtype_name = "float32",
               .dtype = DType::kFloat32,
               .shape = {count_},
               .data = std::as_bytes(std::span(at, values.size()))};
  }
  const CheckpointTensor* find(std::string_view name) const override {
    return name == "w" ? &tensor_ : nullptr;
  }
  std::vector<std::string_view> names() const override { return {"w"}; }

 private:
  struct alignas(64) Lines {
    float values[32] = {};
  };
  Lines memory_;
  int64_t count_;
  CheckpointTensor tensor_;
};

// x -> a temporary -> y, beside a constant -> z.
struct Chain {
  Chain() : program(4) {
    const uint32_t x = program.input(), y = program.output(), z = program.output();
    const uint32_t between = program.buffer(BufferKind::kTemp, 64);
    const uint32_t constant = program.buffer(BufferKind::kConstant, 16);
    program->methods[0].arena_bytes = 128;
    program->constants = std::as_bytes(std::span(constants));
    program.copy(x, between);
    program.copy(between, y);
    program.copy(constant, z);
  }
  CopyProgram program;
  Floats constants = {0, 0, 0, 0, 5, 6, 7, 8};
};

void facts_are_told_apart() {
  const auto device = unified();
  check(device->host_visible() && !device->synchronous(), "visible before it is there");
  check(device->streams() == nullptr && !device->foreign_names(), "nothing that others share");
  check(device->allocate_watched(8) == nullptr, "nothing is seen before it has ended");
  std::array<std::byte, 64> bytes = {};
  check(device->import_host(bytes, nullptr) == nullptr, "no memory of the host");
  const auto one = device->allocate(8), other = device->allocate(8);
  check(one->range().storage != other->range().storage, "storage of its own");
  check(one->range().offset == other->range().offset, "at the same place in it");
}

void runs_over_handles() {
  Chain chain;
  const auto device = unified();
  Executor executor(chain.program.get(), device);
  const auto x = put(*device, {1, 2, 3, 4}), y = device->allocate(16), z = device->allocate(16);
  const Binding in = x->range(), out[] = {y->range(), z->range()};
  executor.enqueue(0, {&in, 1}, out, nullptr, nullptr, 0);
  check(seen(*y) == Floats(4), "nobody has waited");
  check(!executor.can_fail(0), "a wait would be for the work alone");
  executor.settle(0);
  check(seen(*y) == Floats{1, 2, 3, 4} && seen(*z) == Floats{5, 6, 7, 8}, "settled");
  device->upload(*x, 4, std::as_bytes(std::span(chain.constants).last(2)));
  executor.run(0, {&in, 1}, out, nullptr);
  check(seen(*y) == Floats{1, 7, 8, 4}, "a run waits");
  check_refused(ErrorCode::kInput, "has no streams",
                [&] { executor.enqueue(0, {&in, 1}, out, nullptr, nullptr, 1); });
}

void runs_keep_the_bindings_they_began_with() {
  Chain chain;
  const auto device = unified();
  Executor executor(chain.program.get(), device);
  const auto z = device->allocate(16);
  std::vector<std::shared_ptr<Memory>> results;
  for (float i = 0; i < 5; ++i) {
    const auto x = put(*device, Floats(4, i)), y = device->allocate(16);  // x goes behind its run
    const Binding in = x->range(), out[] = {y->range(), z->range()};
    executor.enqueue(0, {&in, 1}, out, nullptr, nullptr, 0);
    results.push_back(y);
  }
  check(seen(*results[0]) == Floats(4, 0) && device->waiting() >= 5, "all wait");
  executor.settle(0);
  for (float i = 0; i < 5; ++i) {
    check(seen(*results[static_cast<size_t>(i)]) == Floats(4, i), "a run's own result");
  }
}

void memory_that_meets_takes_a_detour() {
  Chain chain;
  const auto device = unified();
  Executor executor(chain.program.get(), device);
  const auto whole = put(*device, {1, 2, 3, 4, 5, 6}), z = device->allocate(16);
  const Binding in = whole->range().part(0, 16), meeting = whole->range().part(8, 16);
  const Binding out[] = {meeting, z->range()}, same[] = {z->range(), z->range()};
  executor.enqueue(0, {&in, 1}, out, nullptr, nullptr, 0);
  check(got(*device, *whole) == Floats{1, 2, 1, 2, 3, 4}, "an output over a part of the input");
  check_refused(ErrorCode::kInput, "two outputs",
                [&] { executor.run(0, {&in, 1}, same, nullptr); });
}

void observers_see_each_command() {
  Chain chain;
  const auto device = unified();
  Executor executor(chain.program.get(), device);
  const auto x = put(*device, {1, 2, 3, 4}), y = device->allocate(16), z = device->allocate(16);
  const Binding in = x->range(), out[] = {y->range(), z->range()};
  std::vector<size_t> commands;
  executor.observe(0, {&in, 1}, out, nullptr, [&](size_t index) {
    commands.push_back(index);
    Floats between(4);
    device->download(std::as_writable_bytes(std::span(between)), *executor.buffer(3));
    check(between == Floats{1, 2, 3, 4}, "a temporary");
    check((got(*device, *y) == Floats{1, 2, 3, 4}) == (index > 0), "the output");
  });
  check(commands == std::vector<size_t>{0, 1, 2}, "commands");
  check(executor.buffer(3) && !executor.buffer(0), "what is the executor's own");
  double seconds[3] = {};
  executor.time(0, {&in, 1}, out, nullptr, seconds);
  check(*std::min_element(seconds, seconds + 3) > 0, "times");
}

void states_are_independent() {
  CopyProgram program(4);
  const uint32_t x = program.input(), y = program.output();
  const uint32_t state = program.buffer(BufferKind::kState, 64);
  program->state_bytes = 128;
  program.copy(state, y);
  program.copy(x, state);
  const auto device = unified();
  Executor executor(program.get(), device);
  State one(program.get(), device);
  const auto given = put(*device, {1, 2, 3, 4}), result = device->allocate(16);
  const Binding in = given->range(), out = result->range();
  executor.enqueue(0, {&in, 1}, {&out, 1}, nullptr, &one, 0);
  const auto twin = one.copy();
  const Floats nines(4, 9);
  one.write(state, 0, std::as_bytes(std::span(nines)));
  executor.run(0, {&in, 1}, {&out, 1}, nullptr, twin.get());
  check(seen(*result) == Floats{1, 2, 3, 4}, "the copy's own");
  executor.run(0, {&in, 1}, {&out, 1}, nullptr, &one);
  check(seen(*result) == nines, "what was written");
  executor.run(0, {&in, 1}, {&out, 1}, nullptr);
  check(seen(*result) == Floats(4), "the executor's own");
}

// w -> persistent -> y by init, and w -> z by the method, which reads it where it lies if it can.
void weights_arrive(bool imports, bool aligned) {
  CopyProgram program(4);
  const uint32_t y = program.output(), z = program.output(), w = program.weight("w");
  const uint32_t kept = program.buffer(BufferKind::kPersistent, 64);
  program->persistent_bytes = 128;
  program.copy_once(w, kept);
  program.copy(kept, y);
  program.copy(w, z);
  const auto device = unified({.can_fail = false, .imports = imports});
  const auto tensors = std::make_shared<OneTensor>(Floats{1, 2, 3, 4}, aligned);
  const auto weights = Weights::load(program.get(), device, tensors, {});
  check(weights->in_place() == (imports && aligned), "where they lie");
  const Floats sevens(4, 7);
  std::vector<std::vector<std::byte>> parts;
  weights->read([&](auto bytes) { parts.emplace_back(bytes.begin(), bytes.end()); });
  PreparedView prepared{.persistent = parts.at(0), .weights = {}, .source = nullptr};
  for (size_t i = 0; const uint32_t buffer : weights->kept()) {
    prepared.weights.emplace_back(buffer, parts.at(++i));
  }
  const auto twin = Weights::load_prepared(program.get(), device, prepared);
  Executor executor(program.get(), device);
  const auto a = device->allocate(16), b = device->allocate(16);
  const Binding out[] = {a->range(), b->range()};
  for (const auto& any : {weights, twin}) {
    device->upload(*a, 0, std::as_bytes(std::span(sevens)));
    executor.run(0, {}, out, any.get());
    check(seen(*a) == Floats{1, 2, 3, 4} && seen(*b) == seen(*a), "weights");
  }
}

void what_is_too_small_is_refused() {
  Chain chain;
  const auto device = unified();
  Executor executor(chain.program.get(), device);
  const auto memory = device->allocate(16);
  const Floats four(4);
  check_refused(ErrorCode::kInput, "leave a memory of 16 bytes",
                [&] { device->upload(*memory, 1, std::as_bytes(std::span(four))); });
  const Binding small = memory->range().part(0, 12);
  const auto y = device->allocate(16), z = device->allocate(16);
  const Binding out[] = {y->range(), z->range()};
  check_refused(ErrorCode::kInput, "needs 16 bytes, got 12",
                [&] { executor.run(0, {&small, 1}, out, nullptr); });
}

// A token that the table has no row for.
void failures_are_told_when_they_are_waited_for() {
  static const ChainProgram program;
  const auto device = unified({.can_fail = true, .imports = false});
  const auto model = program.load(device);
  State state(model->program(), device);
  std::vector<float> scores(ChainProgram::kVocabulary);
  const int64_t good = 7, bad = 1000;
  for (int turn = 0; turn < 2; ++turn) {
    check_refused(ErrorCode::kData, "1000", [&] { model->feed(state, {&bad, 1}, scores); });
    model->feed(state, {&good, 1}, scores);
    check(scores[8] == 5.0f, "usable afterwards");
  }
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  facts_are_told_apart();
  runs_over_handles();
  runs_keep_the_bindings_they_began_with();
  memory_that_meets_takes_a_detour();
  observers_see_each_command();
  states_are_independent();
  for (const bool imports : {false, true}) {
    for (const bool aligned : {false, true}) weights_arrive(imports, aligned);
  }
  what_is_too_small_is_refused();
  failures_are_told_when_they_are_waited_for();
  return exit_code();
}
