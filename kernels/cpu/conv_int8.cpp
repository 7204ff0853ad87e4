// Convolutions and matmuls of 8-bit integers, as an indirect GEMM over quads of bytes.
//
// Rows are output positions. Where a pixel's channels are whole quads they are read in place
// through pointers; otherwise a row's bytes are gathered into scratch first. What lies outside the
// input is the zero point, so that it adds nothing. Depthwise convolutions multiply quads of taps.
#include "kernels/cpu/conv_rows.h"
#include "kernels/cpu/int8_depthwise.h"
#include "kernels/cpu/int8_finish.h"
#include "kernels/cpu/int8_gather.h"
#include "kernels/cpu/int8_requantize.h"
#include "kernels/cpu/int8_tile.h"
#include "kernels/cpu/scratch.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ConvInt8Params;

constexpr int32_t kBfloat16 = static_cast<int32_t>(abi::DType::kBfloat16);
constexpr int64_t kRowBlock = 96;                     // positions that share a pass over B
constexpr int64_t kGatheredBytes = int64_t{1} << 18;  // of rows that are copied at once
constexpr int64_t kWideningTiles = 3;    // over which weights that are widened first are as quick
constexpr int64_t kWidenedDepth = 1280;  // of a panel: more comes from farther than bytes would
// Rows whose sums are finished together: all, where what that begins with is long beside a tile.
constexpr int64_t kFinishedRows = kMultipliesPairs ? kRowBlock : kMaxTileRows;
constexpr int64_t kFinishQuads = 10;    // that take as long as making a byte of a sum
constexpr int64_t kTaskShare = 4;       // tasks in one of floats: whole commands take no longer
constexpr int64_t kShortRun = 16;       // channels that make a poor run of their own
constexpr int64_t kDepthwiseRows = 32;  // positions of a depthwise task

// Everything that follows from the parameters alone.
struct Plan {
  const Params& p;
  Int8Panels w;
  int64_t channels, taps;  // of a group
  int64_t positions, rows, blocks;
  bool gathers;

  explicit Plan(const Params& p) : p(p) {
    channels = p.depthwise ? 1 : p.in_channels / p.groups;
    taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    w = {p.depthwise ? 1 : p.groups, p.out_channels / (p.depthwise ? 1 : p.groups), taps * channels,
         p.depthwise != 0};
    const bool poor = taps > 1 && channels < kShortRun;
    gathers = !p.depthwise && (channels % kQuad != 0 || p.x_strides[1] != 1 || poor);
    positions = p.batch * p.out_size[0] * p.out_size[1] * p.out_size[2];
    int64_t limit = p.depthwise ? kDepthwiseRows : kRowBlock;
    if (gathers || widens()) {
      const int64_t row = std::max<int64_t>(1, w.quads()) * kQuad * int64_t{sizeof(Int8Element)};
      limit = std::clamp<int64_t>(kGatheredBytes / row, kMaxTileRows, limit);
    }
    rows = Split(positions, limit).largest();
    blocks = Split(positions, limit).parts;
  }
  int64_t columns() const { return w.columns; }
  // Whether rows of x are copied to be multiplied, and whether weights are.
  bool widens() const { return kMultipliesPairs && !p.depthwise; }
  bool widens_weights() const {
    return widens() && row_bytes() <= kWidenedDepth &&
           rows > (kWideningTiles - 1) * int8_tile_rows(kTilePanels);
  }
  // Pixels that a row has pointers to, those of depthwise taps filled up to whole quads.
  int64_t pixels() const {
    if (gathers) return 1;
    return p.depthwise ? w.quads() * kQuad : taps;
  }
  bool has_w_zeros() const { return p.w_zeros || !is_signed_byte(p.w_dtype); }
  int64_t row_bytes() const { return w.quads() * kQuad; }
  TaskGrid grid() const {
    if (p.depthwise) return {blocks, positions, kPanel, taps * p.in_channels / 8, true};
    const int64_t quads = kTaskShare * (w.quads() + kFinishQuads);
    return {w.groups * blocks, positions * w.groups, columns(), quads, gathers};
  }
};

// Whether bytes are made of activated floats; ReLU is a bound of bytes.
bool is_activated(const Params& p) {
  const auto act = static_cast<abi::Opcode>(p.act);
  return makes_bytes(p.y_dtype) && act != abi::Opcode::kCopy && act != abi::Opcode::kRelu;
}

// What a worker's scratch holds of, from one call to the next: a row block and a group's columns.
struct Entered {
  int64_t index, group, count;
  Int8Rows rows;
  bool has_w_zero;
};

// A worker's scratch.
struct Scratch {
  Arena arena;
  Entered* entered;
  const uint8_t** at;
  int64_t *y_rows, *r_rows, *axes;
  int32_t *sums, *x_sums;
  uint8_t *outside, *gathered;
  const Int8Element** rows;              // where the rows are that are multiplied, and these where
  Int8Element *widened, *widened_panel;  // they are widened, and a panel is
  int8_t* ones;  // of a depthwise weight: what its zero points are multiplied by
  Int8Columns by;

  Scratch(const Plan& plan, void* base)
      : arena(base),
        entered(arena.take<Entered>(1)),
        at(arena.take<const uint8_t*>(plan.pixels() * plan.rows)),
        y_rows(arena.take<int64_t>(plan.rows)),
        r_rows(arena.take<int64_t>(plan.rows)),
        axes(arena.take<int64_t>(2 * (plan.p.kernel[0] + plan.p.kernel[1] + plan.p.kernel[2]))),
        sums(arena.take<int32_t>(kFinishedRows * kSumsStride)),
        x_sums(arena.take<int32_t>(plan.p.depthwise ? kFinishedRows * kSumsStride : plan.rows)),
        outside(arena.take<uint8_t>(plan.p.depthwise ? plan.columns() : plan.channels)),
        gathered(arena.take<uint8_t>(plan.gathers ? plan.rows * plan.row_bytes() : 0)),
        rows(arena.take<const Int8Element*>(plan.widens() ? plan.rows : 0)),
        widened(arena.take<Int8Element>(plan.widens() ? plan.rows * plan.row_bytes() : 0)),
        widened_panel(
            arena.take<Int8Element>(plan.widens_weights() ? plan.row_bytes() * kPanel : 0)),
        ones(arena.take<int8_t>(plan.p.depthwise && plan.has_w_zeros() ? kBlock * plan.row_bytes()
                                                                       : 0)),
        by(arena, plan.w.panels() * kPanel, plan.p.requantization != 0) {}
};

Int8Operands operands_of(const Params& p, void* const* operands) {
  Int8Operands o;
  size_t i = 2;
  if (p.has_x_zero) o.x_zero = operands[i++];
  if (p.w_zeros) o.w_zeros = operands[i++];
  if (p.scales) o.scale = static_cast<const float*>(operands[i++]);
  if (p.has_sum_bias) o.sum_bias = static_cast<const int32_t*>(operands[i++]);
  if (p.has_bias) o.bias = static_cast<const float*>(operands[i++]);
  if (p.residual) o.residual = operands[i++];
  if ((p.residual && makes_bytes(p.y_dtype)) || is_activated(p)) {
    o.terms = static_cast<const float*>(operands[i++]);
  }
  if (p.has_y_zero) o.y_zero = operands[i++];
  o.y = operands[i];
  return o;
}

// One dimension of a convolution that is not transposed.
Axis axis_of(const Params& p, int d, int64_t* storage) {
  Axis axis;
  axis.limit = p.in_size[d];
  axis.tap = storage;
  axis.base = storage + p.kernel[d];
  axis.taps = p.kernel[d];
  axis.advance = p.stride[d];
  axis.outputs = p.out_size[d];
  for (int64_t k = 0; k < p.kernel[d]; ++k) {
    axis.tap[k] = k;
    axis.base[k] = k * p.dilation[d] - p.pad[d];
  }
  return axis;
}

// The row block that a worker is in: which group, which positions, and its tables in scratch.
class RowBlock {
 public:
  RowBlock(const Plan& plan, const KernelCall& call)
      : plan_(plan),
        p_(plan.p),
        s_(plan, call.scratch),
        x_(static_cast<const uint8_t*>(call.operands[0])),
        w_(static_cast<const int8_t*>(call.operands[1])),
        o_(operands_of(plan.p, call.operands)),
        flip_(is_signed_byte(p_.x_dtype) ? kFlip : 0),
        x_zero_(o_.x_zero ? decode_byte(p_.x_dtype, o_.x_zero, 0) : 0),
        in_(*s_.entered) {
    int64_t* storage = s_.axes;
    for (int d = 0; d < 3; ++d, storage += 2 * p_.kernel[d - 1]) axes_[d] = axis_of(p_, d, storage);
    s_.by.has_w_zero = !call.first && in_.has_w_zero;
    if (!call.first) return;
    in_ = {-1, -1, 0, {}, false};
    std::fill_n(s_.outside, p_.depthwise ? plan.columns() : plan.channels,
                static_cast<uint8_t>(x_zero_));
    if (!p_.depthwise || !plan.has_w_zeros()) return;
    for (int64_t t = 0; t < plan.row_bytes(); ++t) {
      int8_t* quads = s_.ones + t / kQuad * kBlock * kQuad;
      for (int64_t c = 0; c < kBlock; ++c) quads[depthwise_place(c, t % kQuad)] = t < plan.taps;
    }
  }

  void enter(int64_t index) {
    if (index == in_.index) return;
    const int64_t group = index / plan_.blocks;
    if (group != in_.group) enter_group(group);
    in_.index = index;
    const Positions from = positions(index % plan_.blocks);
    offsets_of(axes_, p_.y_strides, from, s_.y_rows, group * p_.y_group);
    if (p_.residual) offsets_of(axes_, p_.r_strides, from, s_.r_rows, group * p_.y_group);
    const uint8_t* x = x_ + group * p_.x_group;
    in_.count = from.count;
    if (plan_.gathers) {
      gather(x, from);
    } else {
      const Pixels<uint8_t> pixels{
          x, p_.x_strides[0], p_.x_strides[2], p_.x_strides[3], p_.x_strides[4], s_.outside};
      point_at_taps(pixels, axes_, from, s_.at, from.count);
      std::fill(s_.at + plan_.taps * from.count, s_.at + plan_.pixels() * from.count, s_.outside);
    }
    if (p_.depthwise) return;
    const int64_t taps = plan_.gathers ? 1 : plan_.taps;
    const int64_t quads = plan_.gathers ? plan_.w.quads() : plan_.channels / kQuad;
    in_.rows = rows_of(from.count, taps, quads);
    if (s_.by.has_w_zero) {
      flip_ ? sum_int8_rows<true>(in_.rows, s_.x_sums) : sum_int8_rows<false>(in_.rows, s_.x_sums);
    }
  }

  // Panels [first, end) of the block's rows.
  void multiply(int64_t first, int64_t end) const {
    const Split groups(end - first, kTilePanels);
    for (int64_t g = 0; g < groups.parts; ++g) {
      const int64_t panel = first + groups.begin(g);
      multiply_panels(panel, static_cast<int>(first + groups.begin(g + 1) - panel));
    }
  }

  void multiply_depthwise() const {
    const Split tiles(in_.count, kFinishedRows);
    for (int64_t c = 0; c < plan_.columns(); c += kDepthwiseColumns) {
      const int64_t columns = std::min<int64_t>(kDepthwiseColumns, plan_.columns() - c);
      for (int64_t t = 0; t < tiles.parts; ++t) {
        const int64_t row = tiles.begin(t), rows = tiles.begin(t + 1) - row;
        sum_columns(depthwise_tile(row, rows, c, depthwise_weight(c), s_.by.offset + c, s_.sums));
        if (s_.by.has_w_zero) subtract_w_zeros(row, rows, c);
        finish(row, rows, c, columns);
      }
    }
  }

 private:
  // Of whole quads: what s_.at points to, `taps` runs a row, or copies of it.
  Int8Rows rows_of(int64_t count, int64_t taps, int64_t quads) const {
#if defined(__AVX2__) && !defined(__AVX512F__)
    int16_t* to = s_.widened;
    for (int64_t r = 0; r < count; ++r) {
      s_.rows[r] = to;
      for (int64_t t = 0; t < taps; ++t, to += quads * kQuad) {
        widen_run(s_.at[t * count + r], quads * kQuad, flip_, to);
      }
    }
    return {s_.rows, 0, count, 1, taps * quads};
#else
    return {s_.at, taps == 1 ? 0 : count, count, taps, quads};
#endif
  }
  Positions positions(int64_t block) const {
    const int64_t d = p_.out_size[0], h = p_.out_size[1], w = p_.out_size[2];
    const int64_t begin = Split::even(plan_.positions, plan_.blocks, block);
    const int64_t count = Split::even(plan_.positions, plan_.blocks, block + 1) - begin;
    return {begin / w / h / d, begin / w / h % d, begin / w % h, begin % w, 0, h, 0, w, d, count};
  }

  // Σ (x - zx)(w - zw) = Σ xw - zx Σ w - zw Σ x + k zx zw, in whatever signedness all are held.
  void enter_group(int64_t group) {
    in_.group = group;
    const Int8Columns& by = s_.by;
    const auto* sums =
        reinterpret_cast<const int32_t*>(w_ + plan_.w.sums_offset()) + plan_.w.sums_of(group);
    const int64_t x_zero = x_zero_ + flip_, w_flip = is_signed_byte(p_.w_dtype) ? 0 : kFlip;
    const int64_t first = group * plan_.columns(), columns = plan_.columns();
    bool any = false;
    for (int64_t c = 0; c < plan_.w.panels() * kPanel; ++c) {
      const int64_t column = first + c;
      const bool there = c < columns;
      int64_t zero = there && w_flip ? -w_flip : 0;
      if (there && o_.w_zeros) {
        zero += decode_byte(p_.w_dtype, o_.w_zeros, p_.w_zeros == 1 ? 0 : column);
      }
      int64_t offset = x_zero * (plan_.w.k * zero - sums[c]);
      if (there && o_.sum_bias) offset += o_.sum_bias[column];
      by.offset[c] = static_cast<int32_t>(offset);
      by.w_zero[c] = static_cast<int32_t>(zero);
      by.scale[c] = there && o_.scale ? o_.scale[p_.scales == 1 ? 0 : column] : 0;
      by.bias[c] = there && o_.bias ? o_.bias[column] : 0;
      any |= zero != 0;
      if (!p_.requantization) continue;
      const FixedFactor factor = fixed_factor(by.scale[c]);
      by.multiplier[c] = factor.multiplier;
      by.shift[c] = factor.shift;
    }
    in_.has_w_zero = s_.by.has_w_zero = any;
  }

  // Rows of whole quads in scratch; bytes after a row's last one count as 0.
  void gather(const uint8_t* x, const Positions& from) {
    const int64_t width = plan_.row_bytes();
    const RowGatherer rows{p_, axes_, plan_.channels, s_.outside[0]};
    uint8_t* to = s_.gathered;
    for (int64_t r = 0; r < from.count; ++r) {
      s_.at[r] = to + r * width;
      const int64_t end = plan_.taps * plan_.channels;
      for (int64_t i = end; i < width; ++i) to[r * width + i] = flip_;
    }
    for (Positions at = from; at.count > 0; to += at.line() * width, at.next_line()) {
      rows.gather(x + at.n * p_.x_strides[0], at, width, to);
    }
  }

  void multiply_panels(int64_t panel, int panels) const {
    const int64_t column = panel * kPanel;
    const int64_t columns = std::min<int64_t>(panels * kPanel, plan_.columns() - column);
    const int8_t* b = w_ + in_.group * plan_.w.group_bytes() + panel * plan_.w.panel_bytes();
    const bool more = column + columns < plan_.columns();  // after these panels
    const Split tiles(in_.rows.count, int8_tile_rows(panels));
#if defined(__AVX2__) && !defined(__AVX512F__)
    if (plan_.widens_weights()) widen_quads(b, plan_.w.quads(), s_.widened_panel);
#endif
    for (int64_t t = 0; t < tiles.parts; ++t) {
      const int64_t row = tiles.begin(t), rows = tiles.begin(t + 1) - row;
      const int64_t ahead = more && t < panels ? panels + t : 0;
      const Int8Tile tile{
          .at = in_.rows.at + row,
          .stride = in_.rows.stride,
          .taps = in_.rows.taps,
          .quads = in_.rows.quads,
          .b = plan_.widens_weights() ? static_cast<const void*>(s_.widened_panel) : b,
          .panel_bytes = plan_.w.panel_bytes(),
          .soon = b + ahead * plan_.w.panel_bytes(),
          .offset = s_.by.offset + column,
          .sums = s_.sums + (kMultipliesPairs ? row * kSumsStride : 0)};
      if (makes_bytes(p_.y_dtype)) fetch_bytes(row, rows, column);
      tile_function(static_cast<int>(rows), panels)(tile);
      if (!kMultipliesPairs) finish(row, rows, column, columns);
    }
    if (kMultipliesPairs) finish(0, in_.rows.count, column, columns);
  }

  Int8TileFunction tile_function(int rows, [[maybe_unused]] int panels) const {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return int8_pairs_function(rows, plan_.widens_weights());
#else
    return flip_ ? int8_tile_function<true>(rows, panels) : int8_tile_function<false>(rows, panels);
#endif
  }

  // Brings near what the bytes of some rows will be added to, and written to.
  void fetch_bytes(int64_t row, int64_t rows, int64_t column) const {
    for (int64_t r = row; r < row + rows; ++r) {
      __builtin_prefetch(static_cast<uint8_t*>(o_.y) + s_.y_rows[r] + column, 1);
      if (!o_.residual) continue;
      __builtin_prefetch(static_cast<const uint8_t*>(o_.residual) + s_.r_rows[r] + column);
    }
  }

  void sum_columns(const DepthwiseTile& tile) const {
    (flip_ ? depthwise_function<true>(tile.n) : depthwise_function<false>(tile.n))(tile);
  }
  const int8_t* depthwise_weight(int64_t column) const {
    return w_ + column / kBlock * kBlock * plan_.row_bytes() + column % kBlock * kQuad;
  }
  DepthwiseTile depthwise_tile(int64_t row, int64_t rows, int64_t column, const int8_t* w,
                               const int32_t* offset, int32_t* sums) const {
    return {.at = s_.at + row,
            .stride = in_.count,
            .taps = plan_.taps,
            .quads = plan_.w.quads(),
            .rows = rows,
            .column = column,
            .n = plan_.columns() - column,
            .w = w,
            .offset = offset,
            .sums = sums};
  }
  // Columns have sums of x of their own.
  void subtract_w_zeros(int64_t row, int64_t rows, int64_t column) const {
    static constexpr int32_t kNone[kDepthwiseColumns] = {};
    sum_columns(depthwise_tile(row, rows, column, s_.ones, kNone, s_.x_sums));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < kDepthwiseColumns; c += kLanes) {
        const int64_t at = r * kSumsStride + c;
        const UVec zero = reinterpret_cast<UVec>(load(s_.by.w_zero + column + c));
        const UVec shift = zero * reinterpret_cast<UVec>(load(s_.x_sums + at));
        store(s_.sums + at, difference(load(s_.sums + at), reinterpret_cast<IVec>(shift)));
      }
    }
  }

  void finish(int64_t row, int64_t rows, int64_t column, int64_t columns) const {
    const Int8Sums sums{s_.sums, rows, columns, s_.x_sums + row};
    const Int8Columns by = columns_from(column);
    const int64_t first = in_.group * plan_.columns() + column;
    const int64_t* y_rows = s_.y_rows + row;
    if (makes_sums(p_.y_dtype)) {
      finish_sums(sums, by, static_cast<int32_t*>(o_.y) + column, y_rows);
    } else if (!makes_bytes(p_.y_dtype)) {
      Output out;
      set_epilogue(out, p_);
      if (is_linear(out) && columns % kLanes == 0) {
        return finish_linear(sums, by, row, column);
      }
      out.y = o_.y;
      out.y_rows = s_.y_rows;
      out.bias = o_.bias ? o_.bias + (first - column) : nullptr;
      out.residual = o_.residual;
      out.r_rows = s_.r_rows;
      npusim::cpu::NPUSIM_ISA::finish(out, row, rows, column, columns, scale_sums(sums, by),
                                      kSumsStride);
    } else if (p_.requantization) {
      finish_by_integers(sums, by, row, column);
    } else {
      finish_by_floats(sums, by, row, column);
    }
  }
  // Whether a bias and a float residual are all that follows, and floats or bfloat16 are stored.
  static bool is_linear(const Output& out) {
    const bool adds = out.residual_mode != kAfterActivation && out.r_dtype == 0;
    return adds && out.act == abi::Opcode::kCopy && (out.y_dtype == 0 || out.y_dtype == kBfloat16);
  }
  void finish_linear(const Int8Sums& sums, const Int8Columns& by, int64_t row,
                     int64_t column) const {
    const auto* residual = static_cast<const float*>(o_.residual);
    if (residual) residual += column;
    const int64_t *y_rows = s_.y_rows + row, *r_rows = s_.r_rows + row;
    const auto finish_as = [&](auto* y) {
      finish_floats(sums, by, o_.bias != nullptr, residual, r_rows, y + column, y_rows);
    };
    p_.y_dtype == 0 ? finish_as(static_cast<float*>(o_.y))
                    : finish_as(static_cast<bfloat16*>(o_.y));
  }
  // The columns from one on. Depthwise sums have their weights' zero points in them.
  Int8Columns columns_from(int64_t column) const {
    Int8Columns by = s_.by;
    by.offset += column;
    by.w_zero += column;
    by.scale += column;
    by.bias += column;
    if (p_.requantization) {
      by.multiplier += column;
      by.shift += column;
    }
    by.has_w_zero &= !p_.depthwise;
    return by;
  }
  void finish_by_integers(const Int8Sums& sums, const Int8Columns& by, int64_t row,
                          int64_t column) const {
    const int32_t zero = o_.y_zero ? decode_byte(p_.y_dtype, o_.y_zero, 0) : 0;
    const bool relu = static_cast<abi::Opcode>(p_.act) == abi::Opcode::kRelu;
    const FixedRange range = fixed_range(p_.y_dtype, zero, relu);
    auto* y = static_cast<uint8_t*>(o_.y) + column;
    if (!p_.residual) {
      return requantize(p_.requantization, sums, by, range, nullptr, y, s_.y_rows + row);
    }
    FixedSum added = fixed_sum(o_.terms, is_signed_byte(p_.r_dtype));
    added.residual = static_cast<const uint8_t*>(o_.residual) + column;
    added.rows = s_.r_rows + row;
    requantize(p_.requantization, sums, by, range, &added, y, s_.y_rows + row);
  }
  void finish_by_floats(const Int8Sums& sums, const Int8Columns& by, int64_t row,
                        int64_t column) const {
    const int32_t zero = o_.y_zero ? decode_byte(p_.y_dtype, o_.y_zero, 0) : 0;
    const bool relu = static_cast<abi::Opcode>(p_.act) == abi::Opcode::kRelu;
    const ByteRange range = byte_range(p_.y_dtype, zero, relu);
    auto* y = static_cast<uint8_t*>(o_.y) + column;
    const int64_t* y_rows = s_.y_rows + row;
    const bool biased = o_.bias != nullptr;
    if (is_activated(p_)) {
      Output out;
      set_epilogue(out, p_);
      return finish_bytes_activated(sums, by, range, biased, out, *o_.terms, y, y_rows);
    }
    if (!p_.residual) return finish_bytes(sums, by, range, biased, y, y_rows);
    const uint8_t flip = is_signed_byte(p_.r_dtype) ? kFlip : 0;
    const auto* residual = static_cast<const uint8_t*>(o_.residual) + column;
    finish_bytes_added(sums, by, range, biased, o_.terms, residual, flip, s_.r_rows + row, y,
                       y_rows);
  }

  const Plan& plan_;
  const Params& p_;
  Scratch s_;
  const uint8_t* x_;
  const int8_t* w_;
  const Int8Operands o_;
  uint8_t flip_;
  int32_t x_zero_;
  Axis axes_[3];
  Entered& in_;
};

int64_t tasks(const void* params, int64_t) {
  return Plan(*static_cast<const Params*>(params)).grid().count();
}

int64_t scratch(const void* params) {
  return Scratch(Plan(*static_cast<const Params*>(params)), nullptr).arena.bytes();
}

void run(const KernelCall& call) {
  const Plan plan(*static_cast<const Params*>(call.params));
  RowBlock block(plan, call);
  plan.grid().for_each(call.begin, call.end, [&](int64_t index, int64_t first, int64_t end) {
    block.enter(index);
    plan.p.depthwise ? block.multiply_depthwise() : block.multiply(first, end);
  });
}

// ---- check

const char* check_fields(const Params& p) {
  if (const char* why = check_window(p)) return why;
  if (p.groups < 1 || p.in_channels % p.groups || p.out_channels % p.groups)
    return "the groups do not divide the channels";
  for (const int32_t flag : {p.depthwise, p.has_x_zero, p.has_sum_bias, p.has_y_zero, p.has_bias}) {
    if (!is_flag(flag)) return "a flag is neither 0 nor 1";
  }
  if (p.depthwise && (p.groups != 1 || p.in_channels != p.out_channels || p.x_strides[1] != 1))
    return "a depthwise convolution has other channels";
  if (!is_byte(p.x_dtype) || !is_byte(p.w_dtype)) return "an operand is not of 8 bits";
  if (p.w_zeros != 0 && p.w_zeros != 1 && p.w_zeros != p.out_channels)
    return "there are not as many zero points as channels";
  if (p.scales != 0 && p.scales != 1 && p.scales != p.out_channels)
    return "there are not as many scales as channels";
  if (p.residual < kNoResidual || p.residual > kAfterActivation) return "residual is not 0, 1 or 2";
  if (p.requantization && !(is_rounding(p.requantization) && makes_bytes(p.y_dtype)))
    return "sums are not requantized so, or not to bytes";
  if (p.requantization && p.has_bias) return "a bias is no integer";
  if (makes_sums(p.y_dtype)) {
    const bool more = p.scales || p.has_bias || p.residual || p.has_y_zero || p.act;
    return more ? "sums take no epilogue" : nullptr;
  }
  if (!p.scales) return "a result that is scaled has no scale";
  if (!makes_bytes(p.y_dtype)) {
    if (!is_float(p.y_dtype)) return "the output is no float, int32 or byte";
    if (p.has_y_zero) return "floats have no zero point";
    if (p.residual && !is_float(p.r_dtype)) return "the residual is not a float of 32 or 16 bits";
    return is_activation(p.act) ? nullptr : "the activation is not a unary float opcode";
  }
  if (p.residual && !is_byte(p.r_dtype)) return "the residual is not of 8 bits";
  if (!is_activated(p)) return nullptr;
  if (!is_activation(p.act)) return "the activation is not a unary float opcode";
  return p.residual || p.requantization ? "bytes are activated and more" : nullptr;
}

Region output_region(const Params& p, const int64_t (&strides)[5]) {
  const int64_t sizes[] = {p.batch,       p.groups,      p.out_channels / p.groups,
                           p.out_size[0], p.out_size[1], p.out_size[2]};
  const int64_t steps[] = {strides[0], p.y_group, 1, strides[2], strides[3], strides[4]};
  return Region().dims(sizes, steps, 6);
}

const char* check_operands(const KernelCheck& c, const Params& p) {
  const int64_t channels = p.out_channels;
  size_t i = 2;
  const auto vector = [&](int64_t n, int64_t bytes) {
    return n ? Region().dim(n, 1).reads(c, i++, bytes) : nullptr;
  };
  if (const char* why = vector(p.has_x_zero, 1)) return why;
  if (const char* why = vector(p.w_zeros, 1)) return why;
  if (const char* why = vector(p.scales, sizeof(float))) return why;
  if (const char* why = vector(p.has_sum_bias * channels, sizeof(int32_t))) return why;
  if (const char* why = vector(p.has_bias * channels, sizeof(float))) return why;
  if (p.residual) {
    const Region residual = output_region(p, p.r_strides);
    if (const char* why = residual.reads(c, i++, element_size(p.r_dtype))) return why;
    if (const char* why = vector(makes_bytes(p.y_dtype) ? 5 : 0, sizeof(float))) return why;
  }
  if (const char* why = vector(is_activated(p), sizeof(float))) return why;
  if (const char* why = vector(p.has_y_zero, 1)) return why;
  if (const char* why = operand_count(c, i + 1)) return why;
  return output_region(p, p.y_strides).writes(c, i, element_size(p.y_dtype));
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_fields(p)) return why;
  if (c.operand_bytes.size() < 3 || c.operand_before.size() != c.operand_bytes.size())
    return "the number of operands does not fit the parameters";
  const int64_t sizes[] = {p.batch,      p.groups,     p.in_channels / p.groups,
                           p.in_size[0], p.in_size[1], p.in_size[2]};
  const int64_t steps[] = {p.x_strides[0], p.x_group,      p.x_strides[1],
                           p.x_strides[2], p.x_strides[3], p.x_strides[4]};
  if (const char* why = Region().dims(sizes, steps, 6).reads(c, 0, 1)) return why;
  if (const char* why = check_operands(c, p)) return why;
  const int64_t k[] = {p.kernel[0], p.kernel[1], p.kernel[2], p.in_channels / p.groups};
  if (product(k, 4) < 0) return "a size is negative or too large";
  return Plan(p).w.check(c, 1);
}

int in_place(const void* params, int read) {
  const auto& p = *static_cast<const Params*>(params);
  const int residual =
      2 + p.has_x_zero + (p.w_zeros != 0) + (p.scales != 0) + p.has_sum_bias + (p.has_bias != 0);
  return p.residual && read == residual ? 0 : -1;
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  const int64_t outputs = saturated({p.batch, p.out_channels, saturated(p.out_size, 3)});
  return saturated({outputs, saturated(p.kernel, 3), p.in_channels / p.groups});
}

}  // namespace

extern const KernelEntry conv_int8_kernel;
const KernelEntry conv_int8_kernel = {"conv_int8", Params::kSchema, sizeof(Params), run,      check,
                                      tasks,       scratch,         nullptr,        in_place, work};

}  // namespace npusim::cpu::NPUSIM_ISA
