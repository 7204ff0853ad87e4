// y = act(x · B + bias + residual) for dense rows and a B packed at load (see pack.cpp): linear
// layers and pointwise convolutions. Rows of 16-bit x are widened to float once a row block. What
// has few terms and columns is gemm_narrow.h's.
#include "kernels/cpu/check.h"
#include "kernels/cpu/gemm_narrow.h"
#include "kernels/cpu/igemm.h"
#include "kernels/cpu/scratch.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
extern const KernelEntry gemm_kernel;
bool is_narrow(const abi::GemmParams& p);
}  // namespace npusim::cpu::NPUSIM_BASE_ISA
#endif

namespace npusim::cpu::NPUSIM_ISA {
namespace {

#ifdef NPUSIM_BASE_ISA
// All that this set adds are dot products of bfloat16; others are the set's below.
constexpr const KernelEntry& kBase = NPUSIM_BASE_ISA::gemm_kernel;
bool is_of_base(const abi::GemmParams& p) {
  return p.x_dtype != kElement || p.b_dtype != kElement || NPUSIM_BASE_ISA::is_narrow(p);
}
#endif

constexpr int64_t kRowBlock = kLanes == 8 ? 132 : 120;  // rows that share a pass over a group of B
constexpr int64_t kWidenedFloats = 128 << 10;           // of 16-bit rows held as float

bool widens(const abi::GemmParams& p) {
  return p.x_dtype != kElement;
}

Split row_blocks(const abi::GemmParams& p) {
  int64_t limit = kRowBlock;
  if (widens(p)) limit = std::clamp<int64_t>(kWidenedFloats / std::max<int64_t>(p.k, 1), 8, limit);
  // One panel cannot be shared by columns.
  if (p.n <= kPanel && p.m >= 2 * kMaxTileRows) limit = std::min(limit, (p.m + 1) / 2);
  return Split(p.m, limit);
}

TaskGrid grid_of(const abi::GemmParams& p) {
  return {row_blocks(p).parts, p.m, p.n, p.k};
}

int64_t tasks(const void* params, [[maybe_unused]] int64_t workers) {
#ifdef NPUSIM_BASE_ISA
  if (is_of_base(*static_cast<const abi::GemmParams*>(params))) return kBase.tasks(params, workers);
#else
  const auto& p = *static_cast<const abi::GemmParams*>(params);
  if (is_narrow(p)) return narrow_tasks(p);
#endif
  return grid_of(*static_cast<const abi::GemmParams*>(params)).count();
}

// A worker's scratch: row pointers, row offsets of y and of the residual, sums, widened rows.
struct Scratch {
  const Element** at;
  int64_t *y_rows, *r_rows;
  float* sums;
  Element *widened, *panels;
  int64_t bytes;

  Scratch(const abi::GemmParams& p, void* base) {
    Arena arena(base);
    const int64_t rows = std::min(kRowBlock, p.m);
    at = arena.take<const Element*>(rows);
    y_rows = arena.take<int64_t>(rows);
    r_rows = arena.take<int64_t>(rows);
    sums = arena.take<float>(sums_floats(rows, 1, p.k));
    widened = arena.take<Element>(widens(p) ? row_blocks(p).largest() * p.k : 0);
    panels = arena.take<Element>(widened_elements(p.b_dtype, 1, p.k));
    bytes = arena.bytes();
  }
};

int64_t scratch(const void* params) {
#ifdef NPUSIM_BASE_ISA
  if (is_of_base(*static_cast<const abi::GemmParams*>(params))) return kBase.scratch(params);
#else
  const auto& p = *static_cast<const abi::GemmParams*>(params);
  if (is_narrow(p)) return narrow_scratch(p);
#endif
  return Scratch(*static_cast<const abi::GemmParams*>(params), nullptr).bytes;
}

// Points `at` at rows [row, row + rows) of x.
void point_at_rows(const abi::GemmParams& p, const void* x, int64_t row, int64_t rows,
                   const Scratch& s) {
  with_operand_type(p.x_dtype, [&]<typename X>(X) {
    const X* from = static_cast<const X*>(x) + row * p.ldx;
    for (int64_t r = 0; r < rows; ++r, from += p.ldx) {
      if constexpr (std::is_same_v<X, Element>) {
        s.at[r] = from;
      } else {
        s.at[r] = widen(from, s.widened + r * p.k, p.k);
      }
    }
  });
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const abi::GemmParams*>(call.params);
#ifdef NPUSIM_BASE_ISA
  if (is_of_base(p)) return kBase.run(call);
#else
  if (is_narrow(p)) return run_narrow(call);
#endif
  const Scratch s(p, call.scratch);
  Output out = make_output(p, call.operands, p.n);
  out.y_rows = s.y_rows;
  out.r_rows = s.r_rows;
  const Split blocks = row_blocks(p);
  const int64_t tap_k = 0;
  int64_t panels_k = 0;
  int64_t current = -1;
  Rows a{.at = s.at, .stride = 0, .count = 0, .taps = 1, .run = p.k, .tap_k = &tap_k};
  grid_of(p).for_each(call.begin, call.end, [&](int64_t block, int64_t first, int64_t end) {
    if (block != current) {
      const int64_t row = blocks.begin(block);
      a.count = blocks.begin(block + 1) - row;
      point_at_rows(p, call.operands[0], row, a.count, s);
      for (int64_t r = 0; r < a.count; ++r) {
        s.y_rows[r] = (row + r) * p.ldy;
        if (p.residual) s.r_rows[r] = (row + r) * p.ldr;
      }
      current = block;
    }
    const Panels b{call.operands[1], p.k, p.b_dtype, s.panels, &panels_k};
    multiply_rows(a, b, first, end, out, s.sums);
  });
}

#ifdef NPUSIM_BASE_ISA
[[gnu::cold]] const char* check(const KernelCheck& c) {
  return kBase.check(c);
}
#else
[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const abi::GemmParams*>(c.params);
  const Region y = Region().dim(p.m, p.ldy).dim(p.n, 1);
  if (const char* why = check_epilogue(c, p, p.n, y, Region().dim(p.m, p.ldr).dim(p.n, 1)))
    return why;
  if (!is_float(p.x_dtype)) return "the input is not a float of 32 or 16 bits";
  if (const char* why = check_panels(c, 1, 1, p.n, p.k, p.b_dtype)) return why;
  return Region().dim(p.m, p.ldx).dim(p.k, 1).reads(c, 0, element_size(p.x_dtype));
}
#endif

int in_place(const void* params, int read) {
  const auto& p = *static_cast<const abi::GemmParams*>(params);
  return in_place_of_residual(p, read);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const abi::GemmParams*>(params);
  return saturated({p.m, p.n, p.k});
}

}  // namespace

extern const KernelEntry gemm_kernel;
const KernelEntry gemm_kernel = {"gemm",
                                 abi::GemmParams::kSchema,
                                 sizeof(abi::GemmParams),
                                 run,
                                 check,
                                 tasks,
                                 scratch,
                                 nullptr,
                                 in_place,
                                 work};

}  // namespace npusim::cpu::NPUSIM_ISA
