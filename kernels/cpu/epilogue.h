// What follows the sums of GEMMs and convolutions: bias, residual, activation, storage. Owns the
// description of an output (Output) and the general way to finish sums that lie in memory (finish);
// igemm.h finishes the common cases while the sums are still in registers.
#pragma once

#include <limits>

#include "kernels/cpu/check.h"
#include "kernels/cpu/math.h"

namespace npusim::cpu::NPUSIM_ISA {

enum Residual : int32_t { kNoResidual = 0, kBeforeActivation = 1, kAfterActivation = 2 };

// Rows of y and of the residual may lie anywhere; their columns are contiguous. Pointers point at
// column 0, and `*_rows[r]` is the offset of row r in elements.
struct Output {
  void* y = nullptr;
  const int64_t* y_rows = nullptr;
  int64_t columns = 0;
  const float* bias = nullptr;  // one a column, or none
  int64_t more = 0;             // vectors after the bias: factors of the sums, then offsets of y
  int64_t vector = 0;           // floats from a vector to the next
  const void* residual = nullptr;
  const int64_t* r_rows = nullptr;
  int32_t y_dtype = 0;
  int32_t r_dtype = 0;
  int32_t residual_mode = kNoResidual;
  abi::Opcode act = abi::Opcode::kCopy;
  float lo = 0, hi = 0;
};

// Fills in what the parameters say; operands and row offsets are the kernel's.
template <typename Params>
inline void set_epilogue(Output& out, const Params& p) {
  out.y_dtype = p.y_dtype;
  out.r_dtype = p.residual ? p.r_dtype : 0;
  out.residual_mode = p.residual;
  out.act = static_cast<abi::Opcode>(p.act);
  out.lo = p.act_lo;
  out.hi = p.act_hi;
}

// Operands are x, `weights` parts of B, [bias], [residual], y: where y is.
template <typename Params>
inline size_t output_operand(const Params& p, size_t weights = 1) {
  return 1 + weights + (p.has_bias ? 1 : 0) + (p.residual ? 1 : 0);
}

// Takes bias, residual and y from the operands.
template <typename Params>
inline Output make_output(const Params& p, void* const* operands, int64_t columns,
                          size_t weights = 1) {
  Output out;
  const size_t y = output_operand(p, weights);
  out.y = operands[y];
  out.bias = p.has_bias ? static_cast<const float*>(operands[1 + weights]) : nullptr;
  out.residual = p.residual ? operands[y - 1] : nullptr;
  out.columns = columns;
  if constexpr (requires { p.out_channels; }) {
    out.more = p.has_bias ? p.has_bias - 1 : 0;
    out.vector = p.out_channels;
  }
  set_epilogue(out, p);
  return out;
}

// The most vectors that a bias consists of: convolutions may have factors and offsets with it.
template <typename Params>
constexpr int32_t most_vectors(const Params& p) {
  return requires { p.out_channels; } ? 3 : 1;
}

// check() of what the epilogue reads and writes, `bias` values and the regions of y and residual.
template <typename Params>
inline const char* check_epilogue(const KernelCheck& c, const Params& p, int64_t bias,
                                  const Region& y, const Region& residual, size_t weights = 1) {
  if (p.has_bias < 0 || p.has_bias > most_vectors(p)) return "has_bias is not a count of vectors";
  if (p.residual < kNoResidual || p.residual > kAfterActivation) return "residual is not 0, 1 or 2";
  if (!is_activation(p.act)) return "the activation is not a unary float opcode";
  if (!is_float(p.y_dtype)) return "the output is not a float of 32 or 16 bits";
  const size_t out = output_operand(p, weights);
  if (const char* why = operand_count(c, out + 1)) return why;
  if (p.has_bias) {
    const Region vectors = Region().dim(p.has_bias, bias).dim(bias, 1);
    if (const char* why = vectors.reads(c, 1 + weights, sizeof(float))) return why;
  }
  if (p.residual) {
    if (!is_float(p.r_dtype)) return "the residual is not a float of 32 or 16 bits";
    if (const char* why = residual.reads(c, out - 1, element_size(p.r_dtype))) return why;
  }
  return y.writes(c, out, element_size(p.y_dtype));
}

// in_place() of a kernel with an epilogue: the residual may lie under y.
template <typename Params>
inline int in_place_of_residual(const Params& p, int read, size_t weights = 1) {
  const auto residual = static_cast<int>(output_operand(p, weights)) - 1;
  return p.residual && read == residual ? 0 : -1;
}

// Whether the activation only keeps to a range.
inline bool has_range(const Output& out) {
  return out.act == abi::Opcode::kCopy || out.act == abi::Opcode::kRelu ||
         out.act == abi::Opcode::kClamp;
}

// True when bias, a float residual and a range are all there is: y = clamp(sum + bias + residual).
inline bool is_linear(const Output& out) {
  const bool plain = out.residual_mode == kNoResidual ||
                     (out.residual_mode == kBeforeActivation && out.r_dtype == 0);
  return has_range(out) && plain && out.more == 0 && out.y_dtype == 0;
}

// The range an activation that is one keeps; NaN passes through `clamp`.
struct Range {
  float lo, hi;
};
inline Range range_of(const Output& out) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  if (out.act == abi::Opcode::kClamp) return {out.lo, out.hi};
  return {out.act == abi::Opcode::kRelu ? 0.0F : -inf, inf};
}
inline Vec clamp(Vec v, Vec lo, Vec hi) {
  v = lo > v ? lo : v;
  return hi < v ? hi : v;
}

inline Vec activate(Vec v, const Output& out) {
  if (out.act == abi::Opcode::kCopy) return v;
  if (out.act == abi::Opcode::kClamp) return clamp(v, broadcast(out.lo), broadcast(out.hi));
  return apply_unary(out.act, v);
}

template <typename T>
inline Vec load_some(const T* p, int64_t n) {
  return n >= kLanes ? load(p) : load_part(p, n);
}

template <typename Y, typename R>
void finish_row(const Output& out, const float* sums, Y* y, const R* residual, const float* bias,
                int64_t columns) {
  const float* factor = out.more > 0 ? bias + out.vector : nullptr;
  const float* offset = out.more > 1 ? factor + out.vector : nullptr;
  for (int64_t c = 0; c < columns; c += kLanes) {
    const int64_t n = columns - c;
    Vec v = load(sums + c);
    if (factor) v *= load_some(factor + c, n);
    if (bias) v += load_some(bias + c, n);
    if (out.residual_mode == kBeforeActivation) v += load_some(residual + c, n);
    v = activate(v, out);
    if (out.residual_mode == kAfterActivation) v += load_some(residual + c, n);
    if (offset) v += load_some(offset + c, n);
    if (n >= kLanes) {
      store(y + c, v);
    } else {
      store_part(y + c, v, n);
    }
  }
}

// Finishes rows [row, row + rows), columns [column, column + columns) of `out` from `sums`, whose
// rows are `stride` floats apart and readable to the next multiple of kLanes.
inline void finish(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns,
                   const float* sums, int64_t stride) {
  with_float_type(out.y_dtype, [&](auto y_type) {
    with_float_type(out.r_dtype, [&](auto r_type) {
      using Y = decltype(y_type);
      using R = decltype(r_type);
      const float* bias = out.bias ? out.bias + column : nullptr;
      for (int64_t r = 0; r < rows; ++r) {
        Y* y = static_cast<Y*>(out.y) + out.y_rows[row + r] + column;
        const R* residual = out.residual_mode == kNoResidual ? nullptr
                                                             : static_cast<const R*>(out.residual) +
                                                                   out.r_rows[row + r] + column;
        finish_row(out, sums + r * stride, y, residual, bias, columns);
      }
    });
  });
}

}  // namespace npusim::cpu::NPUSIM_ISA
