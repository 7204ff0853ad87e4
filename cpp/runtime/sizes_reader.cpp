#include "cpp/runtime/sizes_reader.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "cpp/runtime/program_validate.h"

namespace npusim {
namespace {

bool is_identifier(std::string_view name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto legal = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && letter(name.front()) && std::all_of(name.begin(), name.end(), legal);
}

// Whether a patch lies in its command: aligned in the parameters, or at an operand.
bool fits(const Patch& patch, const Command& command) {
  if (patch.kind > PatchKind::kOperand) return false;
  if (patch.kind == PatchKind::kOperand) return patch.at < command.operands.size();
  const bool narrow = patch.kind == PatchKind::kI32 || patch.kind == PatchKind::kF32;
  const size_t width = narrow ? 4 : 8;
  return patch.at % width == 0 && patch.at + width <= command.params.size();
}

template <typename Record>
void require_step(const Rows<Record>& owner, const MethodSizes& sizes, uint32_t step) {
  if (step >= sizes.steps.size()) owner.refuse("its step does not exist");
}

}  // namespace

void SizesReader::read(std::vector<Method>& methods) {
  uint32_t before = 0;  // init has none
  while (shapes_.left() != 0) {
    const auto record = shapes_.next();
    shapes_.require_zero(record.reserved);
    if (record.method <= before || record.method > methods.size()) {
      shapes_.refuse("its method does not exist, or is out of order");
    }
    before = record.method;
    Method& method = methods[record.method - 1];
    read_symbols(method.sizes, record.symbols);
    const SizeProver prover = read_steps(method.sizes, record.steps);
    read_dims(method, record.dims, prover);
    read_patches(method, record.patches);
  }
}

void SizesReader::read_symbols(MethodSizes& sizes, uint32_t count) {
  symbols_.require(count);
  sizes.symbols.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto record = symbols_.next();
    symbols_.require_zero(record.reserved);
    const Symbol symbol{symbols_.pick(strings_, record.name, "string"), record.low, record.high};
    if (!is_identifier(symbol.name)) {
      symbols_.refuse("a symbol's name is not made of letters, digits and '_'");
    }
    if (symbol.low < 0 || symbol.low >= symbol.high || symbol.high > kMaxBytes) {
      symbols_.refuse("its bounds are no range of sizes");
    }
    if (i > 0 && sizes.symbols.back().name >= symbol.name) {
      shapes_.refuse("its symbols are none, or not sorted by name");
    }
    sizes.symbols.push_back(symbol);
  }
  if (count == 0) shapes_.refuse("its symbols are none, or not sorted by name");
}

SizeProver SizesReader::read_steps(MethodSizes& sizes, uint32_t count) {
  expressions_.require(count);
  sizes.steps.reserve(count);
  SizeProver prover(sizes.symbols);
  for (uint32_t i = 0; i < count; ++i) {
    const auto record = expressions_.next();
    expressions_.require_zero(record.reserved);
    const SizeStep step{static_cast<SizeOp>(record.op), record.a, record.b, record.value};
    if (const auto wrong = prover.add(step)) expressions_.refuse(*wrong);
    sizes.steps.push_back(step);
  }
  return prover;
}

void SizesReader::read_dims(Method& method, uint32_t count, const SizeProver& prover) {
  MethodSizes& sizes = method.sizes;
  symbolic_dims_.require(count);
  sizes.dims.reserve(count);
  std::vector<std::optional<ToldSymbol>> told(sizes.symbols.size());
  for (uint32_t i = 0; i < count; ++i) {
    const auto record = symbolic_dims_.next();
    symbolic_dims_.require_zero(record.reserved);
    const bool rises =
        sizes.dims.empty() || sizes.dims.back().spec < record.spec ||
        (sizes.dims.back().spec == record.spec && sizes.dims.back().axis < record.axis);
    if (!rises) symbolic_dims_.refuse("the dimensions are not in order");
    const size_t inputs = method.inputs.size();
    if (record.spec >= inputs + method.outputs.size()) {
      symbolic_dims_.refuse("its tensor does not exist");
    }
    const bool given = record.spec < inputs;
    const TensorSpec& spec =
        given ? method.inputs[record.spec] : method.outputs[record.spec - inputs];
    if (record.axis >= spec.shape.size()) symbolic_dims_.refuse("its dimension does not exist");
    if (spec.shape[record.axis] != spec.alloc_shape[record.axis]) {
      symbolic_dims_.refuse("a symbolic dimension is padded");
    }
    require_step(symbolic_dims_, sizes, record.step);
    sizes.dims.push_back({record.spec, record.axis, record.step});
    const auto& linear = prover.linear(record.step);
    if (given && linear && linear->symbol >= 0 && linear->a > 0) {
      auto& teller = told[static_cast<size_t>(linear->symbol)];
      if (!teller) teller = ToldSymbol{record.spec, record.axis, linear->a, linear->b};
    }
  }
  for (const auto& teller : told) {
    if (!teller) shapes_.refuse("no dimension of an input tells one of its symbols");
    sizes.told.push_back(*teller);
  }
}

void SizesReader::read_patches(Method& method, uint32_t count) {
  std::vector<Patch>& patches = method.sizes.patches;
  patches_.require(count);
  patches.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto record = patches_.next();
    const Patch patch{record.command, static_cast<PatchKind>(record.kind), record.at, record.step};
    const auto key = [](const Patch& p) { return std::tuple(p.command, p.kind, p.at); };
    if (!patches.empty() && key(patches.back()) >= key(patch)) {
      patches_.refuse("the patches are not in order");
    }
    if (patch.command >= method.commands.size()) patches_.refuse("its command does not exist");
    if (!fits(patch, method.commands[patch.command])) {
      patches_.refuse("it does not fit its command");
    }
    require_step(patches_, method.sizes, patch.step);
    patches.push_back(patch);
  }
}

void SizesReader::finish() const {
  symbols_.finish();
  expressions_.finish();
  symbolic_dims_.finish();
  patches_.finish();
}

}  // namespace npusim
