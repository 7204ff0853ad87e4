// Transforms the 3x3 kernels of conv_winograd and packs them, once, at load: for each point of the
// transform a B of igemm.h, [(tile+2)^2][ceil(n/16)][channels][16] floats.
#include "kernels/cpu/check.h"
#include "kernels/cpu/igemm.h"
#include "kernels/cpu/winograd_transform.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::WinogradWeightsParams;

int64_t panels_of(const Params& p) {
  return (p.n + kPanel - 1) / kPanel;
}

int64_t tasks(const void* params, int64_t) {
  return panels_of(*static_cast<const Params*>(params));
}

int64_t scratch(const void*) {
  return 0;
}

template <typename W>
void transform_panel(const Params& p, const W* w, int64_t columns, float* packed) {
  const int64_t stride = panels_of(p) * p.channels * kPanel;
  for (int64_t c = 0; c < p.channels; ++c, packed += kPanel) {
    float lanes[9][kPanel] = {};
    for (int64_t n = 0; n < columns; ++n) {
      const W* from = w + n * p.n_stride + c * p.c_stride;
      for (int64_t t = 0; t < 9; ++t) {
        lanes[t][n] = to_float(from[t / 3 * p.h_stride + t % 3 * p.w_stride]);
      }
    }
    for (int v = 0; v < kPanelVecs; ++v) {
      Vec g[9];
      for (int t = 0; t < 9; ++t) g[t] = load(lanes[t] + v * kLanes);
      with_tile(p.tile,
                [&](auto tile) { transform_kernels<tile>(g, packed + v * kLanes, stride); });
    }
  }
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  with_float_type(p.x_dtype, [&]<typename W>(W) {
    const W* w = static_cast<const W*>(call.operands[0]);
    float* packed = static_cast<float*>(call.operands[1]);
    for (int64_t panel = call.begin; panel < call.end; ++panel) {
      const int64_t column = panel * kPanel;
      transform_panel(p, w + column * p.n_stride, std::min<int64_t>(kPanel, p.n - column),
                      packed + panel * p.channels * kPanel);
    }
  });
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  if (p.tile != 2 && p.tile != 4) return "the Winograd tile is neither 2 nor 4";
  if (!is_float(p.x_dtype)) return "the weight is not a float of 32 or 16 bits";
  if (p.n < 1 || p.channels < 1) return "a channel count is not sound";
  const int64_t points = int64_t{p.tile + 2} * (p.tile + 2);
  if (const char* why = check_panels(c, 1, points, p.n, p.channels, 0)) return why;
  return Region()
      .dim(p.n, p.n_stride)
      .dim(p.channels, p.c_stride)
      .dim(3, p.h_stride)
      .dim(3, p.w_stride)
      .reads(c, 0, element_size(p.x_dtype));
}

}  // namespace

extern const KernelEntry winograd_weights_kernel;
const KernelEntry winograd_weights_kernel = {
    "winograd_weights", Params::kSchema, sizeof(Params), run, check, tasks, scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
