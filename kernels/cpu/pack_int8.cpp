// Lays 8-bit weights out as int8_panels.h says, for `conv_int8`: at load for weights, in the run
// for matmuls of two computed matrices.
#include "kernels/cpu/int8_panels.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::PackInt8Params;

constexpr int64_t kTasks = 64;

Int8Panels layout_of(const Params& p) {
  return {p.groups, p.n, p.taps * p.channels, p.depthwise != 0};
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  return std::min(p.groups * layout_of(p).panels(), kTasks);
}

int64_t scratch(const void*) {
  return 0;
}

// Writes one panel and its columns' sums.
class PanelWriter {
 public:
  PanelWriter(const Params& p, const uint8_t* w, int64_t columns)
      : p_(p), w_(w), columns_(columns), flip_(is_signed_byte(p.x_dtype) ? 0 : kFlip) {}

  // Four rows of K next to each other.
  void write_quads(int64_t quads, int8_t* to, int32_t* sums) const {
    const int64_t k = p_.taps * p_.channels;
    IVec total[kPanelVecs] = {};
    for (int64_t q = 0; q < quads; ++q, to += kPanel * kQuad) {
      std::fill_n(to, kPanel * kQuad, int8_t{0});
      const int64_t at = q * kQuad, rows = std::min(kQuad, k - at);
      if (rows == kQuad && p_.channels % kQuad == 0) {
        const uint8_t* from = w_ + at / p_.channels * p_.t_stride + at % p_.channels * p_.c_stride;
        p_.c_stride == 1 ? copy_quads(from, to) : interleave(from, to);
      } else {
        for (int64_t j = 0; j < rows; ++j) {
          write_row((at + j) / p_.channels, (at + j) % p_.channels, j, to);
        }
      }
      add_quads(to, total);
    }
    for (int v = 0; v < kPanelVecs; ++v) store(sums + v * kLanes, total[v]);
  }
  // Taps as quads, in a block's memory, at the panel that is one of its four; sums of columns that
  // are there a second time are not needed.
  void write_taps(int64_t quads, int64_t panel, int8_t* block, int32_t* sums) const {
    for (int64_t n = 0; n < kPanel; ++n) {
      uint32_t sum = 0;  // wraps, as those of quads do
      for (int64_t t = 0; t < quads * kQuad; ++t) {
        const bool there = n < columns_ && t < p_.taps;
        const auto byte =
            there ? static_cast<int8_t>(w_[n * p_.n_stride + t * p_.t_stride] ^ flip_) : int8_t{0};
        block[t / kQuad * kBlock * kQuad + depthwise_place(panel * kPanel + n, t % kQuad)] = byte;
        sum += static_cast<uint32_t>(byte);
      }
      sums[n] = static_cast<int32_t>(sum);
    }
  }

 private:
  static void add_quads(const int8_t* quads, IVec (&total)[kPanelVecs]) {
    for (int v = 0; v < kPanelVecs; ++v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
      for (int64_t j = 0; j < kQuad; j += 2) {
        const SVec pairs = widen_weights(quads + quad_place(v * kLanes, j));
        total[v] = dot_pairs(total[v], SVec{} + 1, pairs);
      }
#else
      const auto* quad = reinterpret_cast<const int32_t*>(quads);
      total[v] = dot_quads(total[v], IVec{} + 0x01010101, load(quad + v * kLanes));
#endif
    }
  }
  // Columns whose K is contiguous.
  void copy_quads(const uint8_t* from, int8_t* to) const {
    const uint32_t flip = flip_ * 0x01010101u;
    for (int64_t n = 0; n < columns_; ++n, from += p_.n_stride) {
      uint32_t quad;
      std::memcpy(&quad, from, sizeof quad);
      quad ^= flip;
      std::memcpy(to + quad_place(n, 0), &quad, kMultipliesPairs ? kQuad / 2 : kQuad);
      if (kMultipliesPairs) {
        quad >>= 16;
        std::memcpy(to + quad_place(n, 2), &quad, kQuad / 2);
      }
    }
  }
  void interleave(const uint8_t* from, int8_t* to) const {
    for (int64_t n = 0; n < columns_; ++n) {
      const uint8_t* at = from + n * p_.n_stride;
      for (int64_t j = 0; j < kQuad; ++j) {
        to[quad_place(n, j)] = static_cast<int8_t>(at[j * p_.c_stride] ^ flip_);
      }
    }
  }
  void write_row(int64_t tap, int64_t channel, int64_t j, int8_t* to) const {
    const uint8_t* from = w_ + tap * p_.t_stride + channel * p_.c_stride;
    for (int64_t n = 0; n < columns_; ++n) {
      to[quad_place(n, j)] = static_cast<int8_t>(from[n * p_.n_stride] ^ flip_);
    }
  }

  const Params& p_;
  const uint8_t* w_;
  int64_t columns_;
  uint8_t flip_;
};

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Int8Panels layout = layout_of(p);
  const int64_t panels = layout.panels(), total = p.groups * panels;
  const int64_t count = std::min(total, kTasks);
  auto* packed = static_cast<int8_t*>(call.operands[1]);
  auto* sums = reinterpret_cast<int32_t*>(packed + layout.sums_offset());
  for (int64_t i = total * call.begin / count; i < total * call.end / count; ++i) {
    const int64_t group = i / panels;
    int64_t column = i % panels * kPanel;
    const auto* w = static_cast<const uint8_t*>(call.operands[0]) + group * p.g_stride;
    const int64_t block = column / kBlock * kBlock;
    if (layout.depthwise && p.n - block <= kBlock / 2) column = block + column % (kBlock / 2);
    const int64_t columns = std::clamp<int64_t>(p.n - column, 0, kPanel);
    const PanelWriter writer(p, columns ? w + column * p.n_stride : w, columns);
    if (layout.depthwise) {
      const int64_t at = i % kBlockPanels;
      int8_t* to = packed + (i - at) * layout.panel_bytes();
      writer.write_taps(layout.quads(), at, to, sums + i * kPanel);
    } else {
      writer.write_quads(layout.quads(), packed + i * layout.panel_bytes(), sums + i * kPanel);
    }
  }
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 2)) return why;
  if (!is_byte(p.x_dtype)) return "the weight is not of 8 bits";
  if (!is_flag(p.depthwise)) return "depthwise is neither 0 nor 1";
  if (p.depthwise && p.channels != 1) return "a depthwise weight has more than one channel";
  const int64_t k[] = {p.taps, p.channels};
  if (product(k, 2) < 0) return "a size is negative or too large";
  if (const char* why = layout_of(p).check(c, 1)) return why;
  return Region()
      .dim(p.groups, p.g_stride)
      .dim(p.n, p.n_stride)
      .dim(p.taps, p.t_stride)
      .dim(p.channels, p.c_stride)
      .reads(c, 0, 1);
}

}  // namespace

extern const KernelEntry pack_int8_kernel;
const KernelEntry pack_int8_kernel = {"pack_int8", Params::kSchema, sizeof(Params), run,
                                      check,       tasks,           scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
