#include "cpp/runtime/sizes.h"

#include <algorithm>
#include <cstdlib>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr int64_t kMost = int64_t{1} << 62;  // what a step may be
constexpr int64_t kMostWeight = 1000;        // steps of an expression that is written out

int64_t floor_div(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && a < 0 ? quotient - 1 : quotient;  // b > 0
}

int64_t apply(SizeOp op, int64_t a, int64_t b) {
  switch (op) {
    case SizeOp::kAdd:
      return a + b;
    case SizeOp::kMul:
      return a * b;
    case SizeOp::kFloorDiv:
      return floor_div(a, b);
    case SizeOp::kMod:
      return a - floor_div(a, b) * b;
    case SizeOp::kMax:
      return std::max(a, b);
    default:
      return std::min(a, b);
  }
}

bool fits(int64_t value) {
  return value >= -kMost && value <= kMost;
}

// a + b or a * b if that passes nothing; both are within 62 bits.
std::optional<int64_t> checked(SizeOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == SizeOp::kMul ? __builtin_mul_overflow(a, b, &result)
                         : __builtin_add_overflow(a, b, &result)) {
    return std::nullopt;
  }
  if (!fits(result)) return std::nullopt;
  return result;
}

std::optional<LinearSize> linear_of(SizeOp op, const std::optional<LinearSize>& x,
                                    const std::optional<LinearSize>& y) {
  if (!x || !y) return std::nullopt;
  const bool constant = x->symbol < 0 || y->symbol < 0;
  std::optional<int64_t> a, b;
  if (op == SizeOp::kAdd && (x->symbol == y->symbol || constant)) {
    a = checked(op, x->a, y->a);
    b = checked(op, x->b, y->b);
  } else if (op == SizeOp::kMul && constant) {
    const auto& [factor, other] = x->symbol < 0 ? std::pair(x->b, *y) : std::pair(y->b, *x);
    a = checked(op, other.a, factor);
    b = checked(op, other.b, factor);
  }
  if (!a || !b) return std::nullopt;
  return LinearSize{std::max(x->symbol, y->symbol), *a, *b};
}

}  // namespace

std::optional<std::string> SizeProver::add(const SizeStep& step) {
  if (step.op > SizeOp::kMin) return "its operation is unknown";
  const bool leaf = step.op <= SizeOp::kSymbol;
  const bool unused =
      step.op == SizeOp::kConst ? (step.a | step.b) != 0 : step.value != 0 || (leaf && step.b != 0);
  if (unused) return "a field without meaning is not zero";
  if (step.op == SizeOp::kSymbol && step.a >= symbols_.size()) return "its symbol does not exist";
  if (!leaf && std::max(step.a, step.b) >= facts_.size()) {
    return "it reads a step that is not before it";
  }
  const bool divides = step.op == SizeOp::kFloorDiv || step.op == SizeOp::kMod;
  if (divides && facts_[step.b].low < 1) return "it may divide by what is not positive";
  const std::optional<Fact> fact = fact_of(step);
  if (!fact) return "it may pass 62 bits";
  if (fact->weight > kMostWeight) return "it takes more than 1000 steps";
  facts_.push_back(*fact);
  return std::nullopt;
}

std::optional<SizeProver::Fact> SizeProver::fact_of(const SizeStep& step) const {
  if (step.op == SizeOp::kConst) {
    if (!fits(step.value)) return std::nullopt;
    return Fact{step.value, step.value, 1, LinearSize{-1, 0, step.value}};
  }
  if (step.op == SizeOp::kSymbol) {
    const Symbol& symbol = symbols_[step.a];
    return Fact{symbol.low, symbol.high, 1, LinearSize{step.a, 1, 0}};
  }
  const Fact &a = facts_[step.a], &b = facts_[step.b];
  Fact fact{0, 0, 1 + a.weight + b.weight, linear_of(step.op, a.linear, b.linear)};
  if (step.op == SizeOp::kMod) {
    fact.high = a.low >= 0 ? std::min(a.high, b.high - 1) : b.high - 1;
    return fact;
  }
  if (step.op == SizeOp::kMax || step.op == SizeOp::kMin) {
    fact.low = apply(step.op, a.low, b.low);
    fact.high = apply(step.op, a.high, b.high);
    return fact;
  }
  fact.low = kMost, fact.high = -kMost;
  for (const int64_t x : {a.low, a.high}) {
    for (const int64_t y : {b.low, b.high}) {
      // A sum takes its ends in pairs; that the mixed ones lie between them changes nothing.
      const auto value =
          step.op == SizeOp::kFloorDiv ? std::optional(floor_div(x, y)) : checked(step.op, x, y);
      if (!value) return std::nullopt;
      fact.low = std::min(fact.low, *value);
      fact.high = std::max(fact.high, *value);
    }
  }
  return fact;
}

std::vector<int64_t> evaluate(const MethodSizes& sizes, std::span<const int64_t> symbols) {
  if (symbols.size() != sizes.symbols.size()) {
    throw Error(ErrorCode::kInput, "there are " + std::to_string(sizes.symbols.size()) +
                                       " symbols, got " + std::to_string(symbols.size()) +
                                       " values");
  }
  std::vector<int64_t> results;
  results.reserve(sizes.steps.size());
  for (const SizeStep& step : sizes.steps) {
    if (step.op == SizeOp::kConst) {
      results.push_back(step.value);
    } else if (step.op == SizeOp::kSymbol) {
      results.push_back(symbols[step.a]);
    } else {
      results.push_back(apply(step.op, results[step.a], results[step.b]));
    }
  }
  return results;
}

std::string size_text(const MethodSizes& sizes, uint32_t index) {
  const SizeStep& step = sizes.steps[index];
  if (step.op == SizeOp::kConst) return std::to_string(step.value);
  if (step.op == SizeOp::kSymbol) return std::string(sizes.symbols[step.a].name);
  const std::string a = size_text(sizes, step.a), b = size_text(sizes, step.b);
  const auto factor = [&](uint32_t at, const std::string& text) {
    const SizeStep& part = sizes.steps[at];
    const bool plain = part.op == SizeOp::kSymbol || part.op >= SizeOp::kMax ||
                       (part.op == SizeOp::kConst && part.value >= 0) ||
                       (part.op == SizeOp::kMul && step.op == SizeOp::kMul);
    return plain ? text : "(" + text + ")";
  };
  switch (step.op) {
    case SizeOp::kAdd:
      return b.starts_with('-') ? a + " - " + b.substr(1) : a + " + " + b;
    case SizeOp::kMul:
      if (sizes.steps[step.b].op == SizeOp::kConst)
        return factor(step.b, b) + "*" + factor(step.a, a);
      return factor(step.a, a) + "*" + factor(step.b, b);
    case SizeOp::kFloorDiv:
      return factor(step.a, a) + "//" + factor(step.b, b);
    case SizeOp::kMod:
      return factor(step.a, a) + "%" + factor(step.b, b);
    default:
      return (step.op == SizeOp::kMax ? "max(" : "min(") + a + ", " + b + ")";
  }
}

std::string describe(std::span<const Symbol> symbols) {
  std::string text;
  for (const Symbol& symbol : symbols) {
    text += (text.empty() ? "" : ", ") + std::string(symbol.name) + " " +
            std::to_string(symbol.low) + " … " + std::to_string(symbol.high);
  }
  return text;
}

}  // namespace npusim
