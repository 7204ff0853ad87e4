// What follows the sums of GEMMs and convolutions: bias, residual, activation, storage. Owns the
// description of an output (Output) and the general way to finish sums that lie in memory (finish);
// igemm.h finishes the common cases while the sums are still in registers.
#pragma once

#include <limits>

#include "kernels/cpu/check.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/output.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
void finish(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns,
            const float* sums, int64_t stride);
void activate_rows(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns);
void activate(const Output& out, float* values, int64_t n);
}  // namespace npusim::cpu::NPUSIM_BASE_ISA
#endif

namespace npusim::cpu::NPUSIM_ISA {

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

// True when bias, a float residual and an activation are all there is: y = act(sum + bias +
// residual). Then sums are finished in registers, where the activation is a range; any other one is
// applied to y while that is near (activate_rows).
inline bool is_plain(const Output& out) {
  const bool plain = out.residual_mode == kNoResidual ||
                     (out.residual_mode == kBeforeActivation && out.r_dtype == 0);
  return plain && out.more == 0 && out.y_dtype == 0;
}

// The range an activation that is one keeps, and anything for others; NaN passes through `clamp`.
struct Range {
  float lo, hi;
};
inline constexpr Range kAnything = {-std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::infinity()};
inline Range range_of(const Output& out) {
  if (out.act == abi::Opcode::kClamp) return {out.lo, out.hi};
  return {out.act == abi::Opcode::kRelu ? 0.0F : kAnything.lo, kAnything.hi};
}
inline Vec clamp(Vec v, Vec lo, Vec hi) {
  return lesser(hi, greater(lo, v));
}

template <typename T>
inline Vec load_some(const T* p, int64_t n) {
  return n >= kLanes ? load(p) : load_part(p, n);
}

// Finishes rows [row, row + rows), columns [column, column + columns) of `out` from `sums`, whose
// rows are `stride` floats apart and readable to the next multiple of kLanes.
#ifdef NPUSIM_BASE_ISA
using NPUSIM_BASE_ISA::finish;
#else
void finish(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns,
            const float* sums, int64_t stride);
#endif

// The same for 16-bit results, and a residual that is stored like them or as float, of whole rows
// of kFinishedColumns sums end to end, which it overwrites: without a look at where a row ends, and
// with an activation over all of them at once.
inline constexpr bool kFinishesWhole = kLanes == 8;
inline constexpr int64_t kFinishedColumns = 16;
inline bool finishes_whole(const Output& out) {
  return out.y_dtype != 0 && (out.r_dtype == 0 || out.r_dtype == out.y_dtype) && out.more == 0 &&
         out.residual_mode != kAfterActivation;
}
void finish_whole(const Output& out, int64_t row, int64_t rows, int64_t column, float* sums);

// The activation of `out`, which is no range, alone: of floats that lie in y, at rows and columns
// as above; columns are a multiple of kLanes.
#ifdef NPUSIM_BASE_ISA
using NPUSIM_BASE_ISA::activate_rows;
#else
void activate_rows(const Output& out, int64_t row, int64_t rows, int64_t column, int64_t columns);
#endif

// The activation of `out` alone, any, over n values in place; n is a multiple of kLanes.
#ifdef NPUSIM_BASE_ISA
using NPUSIM_BASE_ISA::activate;
#else
void activate(const Output& out, float* values, int64_t n);
#endif

}  // namespace npusim::cpu::NPUSIM_ISA
