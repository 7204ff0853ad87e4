// 3x3 stride-1 convolution by Winograd's F(2x2, 3x3) or F(4x4, 3x3): transform a block of input
// tiles, multiply point by point with the transformed kernels (winograd_weights.cpp), transform the
// sums back. A block of transformed tiles stays in the second-level cache from the first step to
// the last. Tasks that share a block but not the columns each transform its input for themselves:
// that is cheaper than waiting for one another.
#include "kernels/cpu/conv_rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/winograd_transform.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ConvWinogradParams;

// Of transformed input and sums: what stays in the second cache, of which processors whose best set
// has eight lanes mostly have half a megabyte.
constexpr int64_t kCacheFloats = kLanes == 8 ? 88 << 10 : 176 << 10;
constexpr int64_t kFewestTiles = 16;  // below, kernels are fetched for too few products
constexpr int64_t kTasks = 4;         // cut columns when there are fewer blocks than this
constexpr int64_t kSpread = 16;       // floats that keep points out of the same cache set

struct Plan {
  const Params& p;
  int64_t points;            // of a tile
  int64_t rows, columns;     // tiles of an image, down and across
  int64_t tiles;             // of all images
  int64_t blocks, block;     // of tiles; tiles of the largest
  int64_t groups, cuts;      // of columns: what is multiplied, and transformed back, at a time
  int64_t width;             // channels of a transformed pixel, whole vectors
  int64_t x_point, y_point;  // floats from one point to the next

  explicit Plan(const Params& p) : p(p) {
    points = int64_t{p.tile + 2} * (p.tile + 2);
    rows = (p.out_size[1] + p.tile - 1) / p.tile;
    columns = (p.out_size[2] + p.tile - 1) / p.tile;
    tiles = p.batch * rows * columns;
    width = (p.in_channels + kLanes - 1) / kLanes * kLanes;
    const int64_t fit = kCacheFloats / (points * (width + kSumsStride));
    const Split split(tiles, std::max(fit, kFewestTiles));
    blocks = split.parts;
    block = split.largest();
    groups = (p.out_channels + kSumsStride - 1) / kSumsStride;
    cuts = blocks ? std::clamp<int64_t>(kTasks / blocks, 1, groups) : 0;
    x_point = block * width + kSpread;
    y_point = block * kSumsStride + kSpread;
  }
  int64_t panels() const { return (p.out_channels + kPanel - 1) / kPanel; }
  int64_t cells() const { return blocks * cuts; }
  bool serial() const {
    const double work = static_cast<double>(tiles * points) * static_cast<double>(p.in_channels) *
                        static_cast<double>(p.out_channels);
    return work < static_cast<double>(TaskGrid::kSmall);
  }
};

struct Scratch {
  const float** at;
  int64_t *y_rows, *r_rows;
  float *x, *sums, *zeros, *tile;
  int64_t bytes;

  Scratch(const Plan& plan, void* base) {
    Arena arena(base);
    at = arena.take<const float*>(plan.block);
    y_rows = arena.take<int64_t>(16);
    r_rows = arena.take<int64_t>(16);
    x = arena.take<float>(plan.points * plan.x_point);
    sums = arena.take<float>(plan.points * plan.y_point);
    zeros = arena.take<float>(plan.width);
    tile = arena.take<float>(16 * kSumsStride);
    bytes = arena.bytes();
  }
};

template <int M>
class Block {
  static constexpr int kPoints = Winograd<M>::kPoints;

 public:
  Block(const Plan& plan, const KernelCall& call)
      : plan_(plan),
        p_(plan.p),
        s_(plan, call.scratch),
        x_(call.operands[0]),
        u_(static_cast<const float*>(call.operands[1])),
        out_(make_output(plan.p, call.operands, plan.p.out_channels)) {
    out_.y_rows = s_.y_rows;
    out_.r_rows = s_.r_rows;
    plain_ = is_plain(out_);
    std::fill_n(s_.zeros, plan.width, 0.0F);
  }

  void run(int64_t cell) {
    enter(cell / plan_.cuts);
    const int64_t cut = cell % plan_.cuts;
    const int64_t end = Split::even(plan_.groups, plan_.cuts, cut + 1);
    for (int64_t group = Split::even(plan_.groups, plan_.cuts, cut); group < end; ++group) {
      multiply(group);
      for (int64_t i = 0; i < count_; ++i) transform_back(i, group * kSumsStride);
    }
  }

 private:
  // Transforms the input of a block of tiles.
  void enter(int64_t index) {
    if (index == index_) return;
    index_ = index;
    first_ = Split::even(plan_.tiles, plan_.blocks, index);
    count_ = Split::even(plan_.tiles, plan_.blocks, index + 1) - first_;
    with_float_type(p_.x_dtype, [&]<typename X>(X) {
      for (int64_t i = 0; i < count_; ++i) transform_input<X>(i);
    });
  }

  struct Place {
    int64_t n, h, w;  // image, first output row and column
  };
  Place place_of(int64_t i) const {
    const int64_t tile = first_ + i, across = tile / plan_.columns;
    return {across / plan_.rows, across % plan_.rows * M, tile % plan_.columns * M};
  }

  template <typename X>
  void transform_input(int64_t i) {
    const Place at = place_of(i);
    const X* image = static_cast<const X*>(x_) + at.n * p_.x_strides[0];
    const X* pixels[kPoints][kPoints];
    for (int r = 0; r < kPoints; ++r) {
      const int64_t h = at.h + r - p_.pad[1];
      for (int c = 0; c < kPoints; ++c) {
        const int64_t w = at.w + c - p_.pad[2];
        const bool inside = h >= 0 && h < p_.in_size[1] && w >= 0 && w < p_.in_size[2];
        pixels[r][c] = inside ? image + h * p_.x_strides[3] + w * p_.x_strides[4]
                              : reinterpret_cast<const X*>(s_.zeros);
      }
    }
    float* to = s_.x + i * plan_.width;
    int64_t c = 0;
    for (; c + kLanes <= p_.in_channels; c += kLanes) {
      transform_pixels(pixels, c, to + c, [](const X* p) { return load(p); });
    }
    if (const int64_t rest = p_.in_channels - c; rest > 0) {
      transform_pixels(pixels, c, to + c, [rest](const X* p) { return load_part(p, rest); });
    }
  }

  // V = Bᵀ d B, a vector of channels.
  template <typename X, typename Load>
  void transform_pixels(const X* const (&pixels)[kPoints][kPoints], int64_t channel, float* to,
                        Load&& load_pixel) const {
    Vec half[kPoints][kPoints];
#pragma GCC unroll 6
    for (int c = 0; c < kPoints; ++c) {
      Vec d[kPoints], v[kPoints];
#pragma GCC unroll 6
      for (int r = 0; r < kPoints; ++r) d[r] = load_pixel(pixels[r][c] + channel);
      Winograd<M>::input(d, v);
#pragma GCC unroll 6
      for (int r = 0; r < kPoints; ++r) half[r][c] = v[r];
    }
#pragma GCC unroll 6
    for (int r = 0; r < kPoints; ++r) {
      Vec v[kPoints];
      Winograd<M>::input(half[r], v);
#pragma GCC unroll 6
      for (int c = 0; c < kPoints; ++c) store(to + (r * kPoints + c) * plan_.x_point, v[c]);
    }
  }

  // sums[point] = V[point] · U[point] for one group of columns.
  void multiply(int64_t group) {
    constexpr int64_t kTapK = 0;
    const int64_t panel = group * kTilePanels, panels = plan_.panels();
    const int64_t size = panels * p_.in_channels * kPanel;  // of a point of U
    const int width = static_cast<int>(std::min<int64_t>(kTilePanels, panels - panel));
    for (int64_t point = 0; point < plan_.points; ++point) {
      for (int64_t i = 0; i < count_; ++i) {
        s_.at[i] = s_.x + point * plan_.x_point + i * plan_.width;
      }
      const Rows a{.at = s_.at,
                   .stride = 0,
                   .count = count_,
                   .taps = 1,
                   .run = p_.in_channels,
                   .tap_k = &kTapK};
      const Panels b{.data = u_ + point * size, .k = p_.in_channels};
      const bool more = point + 1 < plan_.points;  // else: the first point of the next group
      const int64_t soon = more ? panel : std::min(panel + kTilePanels, panels - 1);
      multiply_group(a, b, panel, width, nullptr, s_.sums + point * plan_.y_point,
                     u_ + (more ? point + 1 : 0) * size + soon * p_.in_channels * kPanel);
    }
  }

  // Y = Aᵀ M A for one tile and one group of columns, finished and stored.
  void transform_back(int64_t i, int64_t column) {
    const Place at = place_of(i);
    const int64_t columns = std::min<int64_t>(kSumsStride, p_.out_channels - column);
    const int64_t rows = std::min<int64_t>(M, p_.out_size[1] - at.h);
    const int64_t across = std::min<int64_t>(M, p_.out_size[2] - at.w);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < across; ++c) {
        const int64_t h = at.h + r, w = at.w + c;
        const auto offset = [&](const int64_t (&strides)[5]) {
          return at.n * strides[0] + h * strides[3] + w * strides[4];
        };
        s_.y_rows[r * across + c] = offset(p_.y_strides);
        if (p_.residual) s_.r_rows[r * across + c] = offset(p_.r_strides);
      }
    }
    const bool direct = plain_ && columns % kLanes == 0;
    const LinearOutput out = linear_output(out_, 0, column);
    for (int64_t c = 0; c < columns; c += kLanes) {
      Vec y[M][M];
      transform_sums(s_.sums + i * kSumsStride + c, y);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t w = 0; w < across; ++w) {
          const int64_t pixel = r * across + w;
          if (direct) {
            store_linear(out, pixel, c, y[r][w]);
          } else {
            store(s_.tile + pixel * kSumsStride + c, y[r][w]);
          }
        }
      }
    }
    if (!direct) {
      finish(out_, 0, rows * across, column, columns, s_.tile, kSumsStride);
    } else if (!has_range(out_)) {
      activate_rows(out_, 0, rows * across, column, columns);
    }
  }

  void transform_sums(const float* sums, Vec (&y)[M][M]) const {
    Vec half[M][kPoints];
#pragma GCC unroll 6
    for (int c = 0; c < kPoints; ++c) {
      Vec m[kPoints], out[M];
#pragma GCC unroll 6
      for (int r = 0; r < kPoints; ++r) m[r] = load(sums + (r * kPoints + c) * plan_.y_point);
      Winograd<M>::output(m, out);
#pragma GCC unroll 4
      for (int r = 0; r < M; ++r) half[r][c] = out[r];
    }
#pragma GCC unroll 4
    for (int r = 0; r < M; ++r) Winograd<M>::output(half[r], y[r]);
  }

  static void store_linear(const LinearOutput& out, int64_t row, int64_t column, Vec sum) {
    if (out.bias) sum += load(out.bias + column);
    if (out.residual) sum += load(out.residual + out.r_rows[row] + column);
    store(out.y + out.y_rows[row] + column,
          clamp(sum, broadcast(out.range.lo), broadcast(out.range.hi)));
  }

  const Plan& plan_;
  const Params& p_;
  const Scratch s_;
  const void* x_;
  const float* u_;
  Output out_;
  bool plain_;
  int64_t index_ = -1, first_ = 0, count_ = 0;
};

int64_t tasks(const void* params, int64_t) {
  const Plan plan(*static_cast<const Params*>(params));
  return plan.serial() ? std::min<int64_t>(1, plan.cells()) : plan.cells();
}

int64_t scratch(const void* params) {
  return Scratch(Plan(*static_cast<const Params*>(params)), nullptr).bytes;
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Plan plan(p);
  with_tile(p.tile, [&](auto tile) {
    Block<tile> block(plan, call);
    const int64_t end = plan.serial() ? plan.cells() : call.end;
    for (int64_t cell = call.begin; cell < end; ++cell) block.run(cell);
  });
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_window(p)) return why;
  if (p.tile != 2 && p.tile != 4) return "the Winograd tile is neither 2 nor 4";
  const bool flat = p.kernel[0] == 1 && p.in_size[0] == 1 && p.out_size[0] == 1 && p.pad[0] == 0;
  if (!flat || p.kernel[1] != 3 || p.kernel[2] != 3) return "the kernel is not 3 x 3";
  for (int d = 1; d < 3; ++d) {
    if (p.stride[d] != 1 || p.dilation[d] != 1) return "a stride or dilation is not 1";
  }
  if (p.x_strides[1] != 1) return "the input's channels are not contiguous";
  if (const char* why = check_epilogue(c, p, p.out_channels, output_region(p, p.y_strides),
                                       output_region(p, p.r_strides)))
    return why;
  if (!is_float(p.x_dtype)) return "the input is not a float of 32 or 16 bits";
  const int64_t points = int64_t{p.tile + 2} * (p.tile + 2);
  if (const char* why = check_panels(c, 1, points, p.out_channels, p.in_channels, 0)) return why;
  return input_region(p).reads(c, 0, element_size(p.x_dtype));
}

int in_place(const void* params, int read) {
  const auto& p = *static_cast<const Params*>(params);
  return in_place_of_residual(p, read);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  const int64_t outputs = saturated({p.batch, p.out_channels, saturated(p.out_size, 3)});
  return saturated({outputs, saturated(p.kernel, 3), p.in_channels});
}

}  // namespace

extern const KernelEntry conv_winograd_kernel;
const KernelEntry conv_winograd_kernel = {
    "conv_winograd", Params::kSchema, sizeof(Params), run,      check,
    tasks,           scratch,         nullptr,        in_place, work};

}  // namespace npusim::cpu::NPUSIM_ISA
