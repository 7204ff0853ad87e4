// Lays a weight out as the panels that igemm.h reads: [groups][ceil(n/16)][K][16], zero-padded,
// K = taps * channels with the taps outermost. Runs once, at load.
#include "kernels/cpu/check.h"
#include "kernels/cpu/igemm.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

constexpr int64_t kTasks = 64;

int64_t panels_of(const abi::PackBParams& p) {
  return (p.n + kPanel - 1) / kPanel;
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const abi::PackBParams*>(params);
  return std::min(p.groups * panels_of(p), kTasks);
}

int64_t scratch(const void*) {
  return 0;
}

// One panel: `columns` of `w` interleaved, the rest zero. Reads follow the smaller stride, so that
// an untransposed weight is read in sequence.
template <typename W, typename B>
void pack_panel(const abi::PackBParams& p, const W* w, int64_t columns, B* panel) {
  const bool taps_inside = p.t_stride < p.c_stride;
  const int64_t outer = taps_inside ? p.channels : p.taps;
  const int64_t inner = taps_inside ? p.taps : p.channels;
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t j = 0; j < inner; ++j) {
      const int64_t tap = taps_inside ? j : i, channel = taps_inside ? i : j;
      const W* from = w + tap * p.t_stride + channel * p.c_stride;
      B* to = panel + (tap * p.channels + channel) * kPanel;
      float row[kPanel] = {};
      for (int64_t n = 0; n < columns; ++n) row[n] = to_float(from[n * p.n_stride]);
      for (int v = 0; v < kPanelVecs; ++v) store(to + v * kLanes, load(row + v * kLanes));
    }
  }
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const abi::PackBParams*>(call.params);
  const int64_t panels = panels_of(p), total = p.groups * panels;
  const int64_t count = std::min(total, kTasks);
  with_float_type(p.x_dtype, [&]<typename W>(W) {
    with_float_type(p.y_dtype, [&]<typename B>(B) {
      for (int64_t i = total * call.begin / count; i < total * call.end / count; ++i) {
        const int64_t group = i / panels, column = i % panels * kPanel;
        const W* w = static_cast<const W*>(call.operands[0]) + group * p.g_stride;
        B* packed = static_cast<B*>(call.operands[1]) + i * p.taps * p.channels * kPanel;
        pack_panel(p, w + column * p.n_stride, std::min<int64_t>(kPanel, p.n - column), packed);
      }
    });
  });
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const abi::PackBParams*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  if (!is_float(p.x_dtype)) return "the weight is not a float of 32 or 16 bits";
  const int64_t sizes[] = {p.taps, p.channels};
  if (const char* why = check_panels(c, 1, p.groups, p.n, product(sizes, 2), p.y_dtype)) return why;
  return Region()
      .dim(p.groups, p.g_stride)
      .dim(p.n, p.n_stride)
      .dim(p.taps, p.t_stride)
      .dim(p.channels, p.c_stride)
      .reads(c, 0, element_size(p.x_dtype));
}

}  // namespace

extern const KernelEntry pack_b_kernel;
const KernelEntry pack_b_kernel = {
    "pack_b", abi::PackBParams::kSchema, sizeof(abi::PackBParams), run, check, tasks, scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
