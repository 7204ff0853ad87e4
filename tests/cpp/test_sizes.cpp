// Symbolic sizes: what proofs about steps accept, what shapes of a call settle, and the static
// program that a method is at some sizes.
#include "cpp/runtime/sizes.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpp/runtime/executor.h"
#include "cpp/runtime/sized_program.h"
#include "tests/cpp/check.h"
#include "tests/cpp/copy_program.h"

namespace npusim::tests {
namespace {

constexpr int64_t kFar = int64_t{1} << 62;

SizeStep constant(int64_t value) {
  return {SizeOp::kConst, 0, 0, value};
}
SizeStep symbol(uint32_t index) {
  return {SizeOp::kSymbol, index, 0, 0};
}
SizeStep apply(SizeOp op, uint32_t a, uint32_t b) {
  return {op, a, b, 0};
}

// batch 1 … 8, seq 2 … 64, and steps over them.
MethodSizes sizes_of(std::vector<SizeStep> steps) {
  return {.symbols = {{"batch", 1, 8}, {"seq", 2, 64}},
          .steps = std::move(steps),
          .dims = {},
          .patches = {},
          .told = {}};
}

// What is wrong with the last of some steps, all others being sound; "" when nothing is.
std::string wrong(const std::vector<SizeStep>& steps) {
  const MethodSizes sizes = sizes_of({});
  SizeProver prover(sizes.symbols);
  std::string found;
  for (const SizeStep& step : steps) {
    check(found.empty(), "an earlier step is refused: " + found);
    found = prover.add(step).value_or("");
  }
  return found;
}

void test_steps_that_cannot_fail_are_taken() {
  check(wrong({symbol(1), constant(3), apply(SizeOp::kMod, 0, 1)}).empty(), "seq % 3");
  check(wrong({symbol(0), symbol(1), apply(SizeOp::kFloorDiv, 0, 1)}).empty(), "batch // seq");
  check(wrong({constant(kFar), constant(-kFar), apply(SizeOp::kMin, 0, 1)}).empty(), "the ends");
  check(wrong({constant(kFar), constant(-kFar), apply(SizeOp::kAdd, 0, 1)}).empty(), "their sum");
  std::vector<SizeStep> chain = {symbol(0)};
  for (uint32_t i = 0; i < 499; ++i) chain.push_back(apply(SizeOp::kMax, i, 0));
  check(wrong(chain).empty(), "999 steps, written out");
}

void test_steps_that_could_fail_are_refused() {
  const auto refused = [](const std::vector<SizeStep>& steps, const std::string& words) {
    const std::string found = wrong(steps);
    check(found.find(words) != found.npos, "expected '" + words + "' in: " + found);
  };
  refused({apply(static_cast<SizeOp>(8), 0, 0)}, "unknown");
  refused({symbol(2)}, "symbol does not exist");
  refused({apply(SizeOp::kAdd, 0, 0)}, "not before it");
  refused({symbol(0), apply(SizeOp::kAdd, 0, 1)}, "not before it");
  refused({{SizeOp::kConst, 1, 0, 5}}, "without meaning");
  refused({{SizeOp::kSymbol, 0, 1, 0}}, "without meaning");
  refused({symbol(0), {SizeOp::kAdd, 0, 0, 7}}, "without meaning");
  refused({constant(kFar + 1)}, "62 bits");
  refused({constant(-kFar - 1)}, "62 bits");
  refused({constant(kFar), symbol(0), apply(SizeOp::kAdd, 0, 1)}, "62 bits");
  refused({constant(kFar / 4), symbol(0), apply(SizeOp::kMul, 0, 1)}, "62 bits");
  refused({constant(INT64_MIN)}, "62 bits");
  refused({symbol(1), constant(0), apply(SizeOp::kMod, 0, 1)}, "not positive");
  refused({symbol(0), constant(-1), apply(SizeOp::kAdd, 0, 1), apply(SizeOp::kFloorDiv, 0, 2)},
          "not positive");
  std::vector<SizeStep> doubled = {symbol(0)};
  for (uint32_t i = 0; i < 9; ++i) doubled.push_back(apply(SizeOp::kMax, i, i));
  refused(doubled, "1000 steps");
}

void test_what_is_linear_is_known() {
  const MethodSizes sizes = sizes_of({});
  SizeProver prover(sizes.symbols);
  // 4 * seq + 1, batch * seq, seq - seq, 7
  for (const SizeStep& step :
       {symbol(1), constant(4), apply(SizeOp::kMul, 1, 0), constant(1), apply(SizeOp::kAdd, 2, 3),
        symbol(0), apply(SizeOp::kMul, 5, 0), constant(-1), apply(SizeOp::kMul, 7, 0),
        apply(SizeOp::kAdd, 0, 8)}) {
    check(!prover.add(step), "sound");
  }
  const auto is = [&](uint32_t step, int64_t symbol, int64_t a, int64_t b) {
    const auto& found = prover.linear(step);
    return found && found->symbol == symbol && found->a == a && found->b == b;
  };
  check(is(4, 1, 4, 1), "4 * seq + 1");
  check(!prover.linear(6), "batch * seq");
  check(is(9, 1, 0, 0), "seq - seq");
  check(is(3, -1, 0, 1), "1");
}

void test_evaluation_rounds_down() {
  const MethodSizes sizes =
      sizes_of({symbol(0), symbol(1), constant(-7), apply(SizeOp::kAdd, 0, 2), constant(3),
                apply(SizeOp::kFloorDiv, 3, 4), apply(SizeOp::kMod, 3, 4),
                apply(SizeOp::kMax, 0, 1), apply(SizeOp::kMin, 0, 1), apply(SizeOp::kMul, 0, 1)});
  const std::vector<int64_t> symbols = {3, 5};
  const std::vector<int64_t> wanted = {3, 5, -7, -4, 3, -2, 2, 5, 3, 15};
  check(evaluate(sizes, symbols) == wanted, "-4 // 3 is -2, and -4 % 3 is 2");
  check_refused(ErrorCode::kInput, "symbols, got 0", [&] { evaluate(sizes, {}); });
}

void test_sizes_are_written_as_in_python() {
  const MethodSizes sizes =
      sizes_of({symbol(1), constant(4), apply(SizeOp::kMul, 0, 1), constant(-3),
                apply(SizeOp::kAdd, 2, 3), symbol(0), apply(SizeOp::kFloorDiv, 4, 5),
                apply(SizeOp::kMax, 5, 0), apply(SizeOp::kMod, 7, 1)});
  check(size_text(sizes, 4) == "4*seq - 3", size_text(sizes, 4));
  check(size_text(sizes, 6) == "(4*seq - 3)//batch", size_text(sizes, 6));
  check(size_text(sizes, 8) == "max(batch, seq)%4", size_text(sizes, 8));
  check(describe(sizes.symbols) == "batch 1 … 8, seq 2 … 64", describe(sizes.symbols));
}

// x[2*n] -> y[2*n] by way of a temporary, n 1 … 8; the count is patched, and the offsets of an
// operand by `offset` too.
CopyProgram doubled(std::vector<SizeStep> more = {}, std::vector<Patch> patches = {}) {
  CopyProgram program(16);
  const uint32_t x = program.input(), y = program.output();
  const uint32_t between = program.buffer(BufferKind::kTemp);
  program->methods[0].arena_bytes = 64;
  program.copy(x, between);
  program.copy(between, y);
  MethodSizes& sizes = program->methods[0].sizes;
  sizes.symbols = {{"n", 1, 8}};
  sizes.steps = {symbol(0), constant(2), apply(SizeOp::kMul, 0, 1)};
  sizes.steps.insert(sizes.steps.end(), more.begin(), more.end());
  sizes.dims = {{0, 0, 2}, {1, 0, 2}};
  sizes.told = {{0, 0, 2, 0}};
  const uint32_t at = offsetof(abi::CopyParams, shape);
  sizes.patches = {{0, PatchKind::kI64, at, 2}, {1, PatchKind::kI64, at, 2}};
  if (!patches.empty()) sizes.patches = std::move(patches);
  return program;
}

void test_shapes_settle_symbols() {
  const CopyProgram program = doubled();
  const Method& method = program.get()->methods[0];
  const auto bound = [&](Shape shape) { return symbols_of(method, {&shape, 1}); };
  check(bound({6}) == std::vector<int64_t>{3}, "2*n = 6");
  check(sizes_text(method, bound({6})) == "n = 3", "in words");
  check_refused(ErrorCode::kInput, "dimension 0 is 7, which is not of the form 2*n",
                [&] { bound({7}); });
  check_refused(ErrorCode::kInput, "dimension 0 is 18; 2*n is 2 … 16 (n 1 … 8)",
                [&] { bound({18}); });
  check_refused(ErrorCode::kInput, "dimension 0 is 0", [&] { bound({0}); });
  check_refused(ErrorCode::kInput, "expected 1 dimensions", [&] { bound({2, 2}); });
  check_refused(ErrorCode::kInput, "has 1 inputs, got 2",
                [&] { symbols_of(method, std::vector<Shape>{{2}, {2}}); });
}

void test_a_method_at_sizes_is_a_static_program() {
  const CopyProgram program = doubled();
  const std::vector<int64_t> three = {3};
  const auto sized = at_sizes(program.get(), 0, three);
  const Method& method = sized->methods.front();
  check(method.sizes.symbols.empty() && method.sizes.patches.empty(), "nothing is open");
  check(method.inputs[0].shape == Shape{6} && method.outputs[0].alloc_shape == Shape{6}, "shapes");
  check(sized->buffers[0].bytes == 24 && sized->buffers[2].bytes == 64, "the caller's alone");
  for (const Command& command : method.commands) {
    abi::CopyParams params;
    std::memcpy(&params, command.params.data(), sizeof params);
    check(params.shape[0] == 6 && params.shape[1] == 1, "the patched count");
  }
  check(program.get()->buffers[0].bytes == 64, "the whole program stays as it is");
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{0}, {9}}) {
    check_refused(ErrorCode::kInput, "possible is n 1 … 8",
                  [&] { at_sizes(program.get(), 0, wrong); });
  }
  check_refused(ErrorCode::kInput, "needs the sizes n 1 … 8; got 0",
                [&] { at_sizes(program.get(), 0, {}); });
}

void test_patches_of_every_kind() {
  const std::vector<SizeStep> more = {constant(4), apply(SizeOp::kMul, 0, 3)};
  const auto patched = [&](PatchKind kind, uint32_t at, uint32_t step) {
    const CopyProgram program = doubled(more, {{0, kind, at, step}});
    const std::vector<int64_t> two = {2};
    const auto sized = at_sizes(program.get(), 0, two);
    const Command& command = sized->methods[0].commands[0];
    return std::pair(std::vector<std::byte>(command.params.begin(), command.params.end()),
                     command.operands[0].offset);
  };
  const auto read = [&](PatchKind kind, uint32_t at, auto value) {
    std::memcpy(&value, patched(kind, at, 4).first.data() + at, sizeof value);
    return static_cast<double>(value);
  };
  check(read(PatchKind::kI32, 4, int32_t{}) == 8, "an int32");
  check(read(PatchKind::kI64, 8, int64_t{}) == 8, "an int64");
  check(read(PatchKind::kF32, 4, float{}) == 8, "a float");
  check(read(PatchKind::kF64, 8, double{}) == 8, "a double");
  check(patched(PatchKind::kOperand, 0, 4).second == 8, "an operand's offset");
}

void test_what_does_not_fit_at_a_size_is_refused() {
  const std::vector<int64_t> eight = {8};
  const auto at = [&](const CopyProgram& program) { return at_sizes(program.get(), 0, eight); };
  const uint32_t shape = offsetof(abi::CopyParams, shape);
  const CopyProgram far = doubled({constant(1000)}, {{0, PatchKind::kOperand, 0, 3}});
  check_refused(ErrorCode::kFormat, "lies outside its buffer", [&] { at(far); });
  const CopyProgram before = doubled({constant(-4)}, {{0, PatchKind::kOperand, 0, 3}});
  check_refused(ErrorCode::kFormat, "lies outside its buffer", [&] { at(before); });
  const CopyProgram large = doubled({constant(int64_t{1} << 31)}, {{0, PatchKind::kI32, 4, 3}});
  check_refused(ErrorCode::kInput, "more than a kernel can count", [&] { at(large); });
  CopyProgram wide = doubled({constant(17)});
  wide->methods[0].sizes.dims[1].step = 3;
  check_refused(ErrorCode::kInput, "there is room for 16", [&] { at(wide); });
  // What a kernel would touch beyond its operands is for the device to find, at these sizes.
  const CopyProgram hostile = doubled({constant(17)}, {{0, PatchKind::kI64, shape, 3}});
  check_refused(ErrorCode::kFormat, "kernel copy refuses it",
                [&] { Executor executor(hostile.get(), open_device("cpu", {{"threads", 1}})); });
}

void test_executors_keep_the_latest_sizes() {
  const CopyProgram program = doubled();
  Executor executor(program.get(), open_device("cpu", {{"threads", 1}}));
  const auto prepared = [&](int64_t n) {
    return executor.prepare(0, std::vector<int64_t>{n}).get();
  };
  const Program* two = prepared(2);
  check(prepared(2) == two, "made once");
  check(prepared(8)->methods[0].inputs[0].shape == Shape{16}, "the greatest");
  std::vector<float> x(16), y(16);
  for (int64_t n = 1; n <= 8; ++n) {
    std::fill(x.begin(), x.end(), static_cast<float>(n));
    std::fill(y.begin(), y.end(), -1.0F);
    const auto bytes = static_cast<size_t>(n) * 8;
    const Binding in = host_range(std::as_bytes(std::span(x)).first(bytes));
    const Binding out = host_range(std::as_bytes(std::span(y)).first(bytes));
    executor.run(0, std::span(&in, 1), std::span(&out, 1), nullptr, nullptr,
                 std::vector<int64_t>{n});
    const auto right = std::count(y.begin(), y.end(), static_cast<float>(n));
    check(right == 2 * n, "as many as the sizes say: " + std::to_string(right));
  }
  check_refused(ErrorCode::kInput, "possible is n 1 … 8", [&] { prepared(9); });
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  test_steps_that_cannot_fail_are_taken();
  test_steps_that_could_fail_are_refused();
  test_what_is_linear_is_known();
  test_evaluation_rounds_down();
  test_sizes_are_written_as_in_python();
  test_shapes_settle_symbols();
  test_a_method_at_sizes_is_a_static_program();
  test_patches_of_every_kind();
  test_what_does_not_fit_at_a_size_is_refused();
  test_executors_keep_the_latest_sizes();
  return exit_code();
}
