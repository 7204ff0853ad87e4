// Symbolic sizes of a method: what a caller's shapes settle, and what in the method depends on it.
// docs/npubin.md, "Symbolic sizes", has the records; python/npusim/program/sizes.py the same rules.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace npusim {

// A size that a caller chooses, from `low` to `high`, both included.
struct Symbol {
  std::string_view name;
  int64_t low, high;
};

enum class SizeOp : uint32_t {
  kConst = 0,
  kSymbol = 1,
  kAdd = 2,
  kMul = 3,
  kFloorDiv = 4,
  kMod = 5,
  kMax = 6,
  kMin = 7,
};

// One step of an expression: from two earlier steps, a symbol (its index in `a`) or a constant.
struct SizeStep {
  SizeOp op;
  uint32_t a, b;
  int64_t value;
};

// A dimension of a spec (inputs count first, then outputs) that is the result of a step.
struct SymbolicDim {
  uint32_t spec, axis, step;
};

enum class PatchKind : uint32_t { kI32 = 0, kI64 = 1, kF32 = 2, kF64 = 3, kOperand = 4 };

// A number in a command that is the result of a step: a parameter at a byte, an operand's offset.
struct Patch {
  uint32_t command;
  PatchKind kind;
  uint32_t at, step;
};

// Dimension `axis` of input `input` is factor * symbol + constant.
struct ToldSymbol {
  uint32_t input, axis;
  int64_t factor, constant;
};

// What of a method depends on the sizes of a call; all empty for a method of static shapes.
struct MethodSizes {
  std::vector<Symbol> symbols;
  std::vector<SizeStep> steps;
  std::vector<SymbolicDim> dims;
  std::vector<Patch> patches;
  std::vector<ToldSymbol> told;  // by symbol
};

// a * symbol + b; symbol is -1 for a constant.
struct LinearSize {
  int64_t symbol, a, b;
};

// Proves that steps can be evaluated for all values of the symbols without overflow or division by
// zero, one step after the other.
class SizeProver {
 public:
  explicit SizeProver(std::span<const Symbol> symbols) : symbols_(symbols) {}
  // Nothing, or what is wrong with the step that comes next.
  std::optional<std::string> add(const SizeStep& step);
  // Of a step: what it is when it is linear in one symbol.
  const std::optional<LinearSize>& linear(uint32_t step) const { return facts_[step].linear; }

 private:
  struct Fact {
    int64_t low, high, weight;
    std::optional<LinearSize> linear;
  };
  std::optional<Fact> fact_of(const SizeStep& step) const;

  std::span<const Symbol> symbols_;
  std::vector<Fact> facts_;
};

// The results of all steps, for values of the symbols within their bounds. Throws Error(kInput)
// for another number of values.
std::vector<int64_t> evaluate(const MethodSizes& sizes, std::span<const int64_t> symbols);

// A step as Python writes it: "4*seq + 1".
std::string size_text(const MethodSizes& sizes, uint32_t step);

// "batch 1 … 8, seq 1 … 128"
std::string describe(std::span<const Symbol> symbols);

}  // namespace npusim
