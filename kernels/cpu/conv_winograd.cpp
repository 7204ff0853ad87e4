// 3x3 stride-1 convolution by Winograd's F(2x2, 3x3) or F(4x4, 3x3): transform a block of input
// tiles, multiply point by point with the transformed kernels (winograd_weights.cpp, or transformed
// here where they are stored in 16 bits), transform the sums back. A block of transformed tiles
// stays in the second-level cache from the first step to the last. Tasks that share a block but not
// the columns each transform its input for themselves: that is cheaper than waiting for one
// another.
#include "kernels/cpu/conv_winograd.h"

#include "kernels/cpu/conv_rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/winograd_transform.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::ConvWinogradParams;

// Where kernels of 16 bits are transformed while it runs: how large tiles are, and the
// multiply-adds that the transform of a kernel takes as long as.
constexpr bool kTransformsStored = kLanes == 8;
constexpr int kStoredTile = 4;
constexpr int64_t kLeastChannels = 32;
constexpr double kInputTransform = 9, kKernelTransform = 100;

// Of transformed input and sums: what stays in the second cache, of which processors whose best set
// has eight lanes mostly have half a megabyte.
constexpr int64_t kCacheFloats = kLanes == 8 ? 88 << 10 : 176 << 10;
constexpr int64_t kFewestTiles = 16;  // below, kernels are fetched for too few products
constexpr int64_t kTasks = 4;         // cut columns when there are fewer blocks than this
constexpr int64_t kSpread = 16;       // floats that keep points out of the same cache set

// How kernels come: transformed, or as panels of a 16-bit dtype.
constexpr int32_t kTransformed = 0;

struct Plan {
  const Params& p;
  int32_t w_dtype;
  int64_t points;            // of a tile
  int64_t rows, columns;     // tiles of an image, down and across
  int64_t tiles;             // of all images
  int64_t blocks, block;     // of tiles; tiles of the largest
  int64_t groups, cuts;      // of columns: what is multiplied, and transformed back, at a time
  int64_t width;             // channels of a transformed pixel, whole vectors
  int64_t x_point, y_point;  // floats from one point to the next
  int64_t u_point;           // the same of a panel of kernels that is transformed here

  explicit Plan(const Params& p, int32_t w_dtype = kTransformed) : p(p), w_dtype(w_dtype) {
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
    u_point = p.in_channels * kPanel + kSpread;
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
  float *x, *sums, *zeros, *tile, *u;
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
    u = arena.take<float>(plan.w_dtype == kTransformed ? 0 : plan.points * plan.u_point);
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
        w_(call.operands[1]),
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
      if (plan_.w_dtype == kTransformed) {
        multiply(group);
      } else if constexpr (kTransformsStored && M == kStoredTile) {
        multiply_by_stored(group);
      }
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
    if constexpr (std::is_same_v<X, float>) {
      for (; c + kLanes <= p_.in_channels; c += kLanes) transform_pixels(pixels, c, to + c);
    }
    if (c == p_.in_channels) return;
    // What is no whole vector of floats is made one first.
    float floats[kPoints][kPoints][kLanes];
    const float* copies[kPoints][kPoints];
    for (int r = 0; r < kPoints; ++r) {
      for (int w = 0; w < kPoints; ++w) copies[r][w] = floats[r][w];
    }
    for (; c < p_.in_channels; c += kLanes) {
      const int64_t n = p_.in_channels - c;
      for (int r = 0; r < kPoints; ++r) {
        for (int w = 0; w < kPoints; ++w) store(floats[r][w], load_some(pixels[r][w] + c, n));
      }
      transform_pixels(copies, 0, to + c);
    }
  }

  // V = Bᵀ d B, a vector of channels.
  [[gnu::noinline]] void transform_pixels(const float* const (&pixels)[kPoints][kPoints],
                                          int64_t channel, float* to) const {
    Vec half[kPoints][kPoints];
#pragma GCC unroll 6
    for (int c = 0; c < kPoints; ++c) {
      Vec d[kPoints], v[kPoints];
#pragma GCC unroll 6
      for (int r = 0; r < kPoints; ++r) d[r] = load(pixels[r][c] + channel);
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
    const auto* u = static_cast<const float*>(w_);
    const int64_t panel = group * kTilePanels, panels = plan_.panels();
    const int64_t size = panels * p_.in_channels * kPanel;  // of a point of U
    const int width = static_cast<int>(std::min<int64_t>(kTilePanels, panels - panel));
    for (int64_t point = 0; point < plan_.points; ++point) {
      const bool more = point + 1 < plan_.points;  // else: the first point of the next group
      const int64_t soon = more ? panel : std::min(panel + kTilePanels, panels - 1);
      multiply_point(point, u + point * size, panel, width,
                     u + (more ? point + 1 : 0) * size + soon * p_.in_channels * kPanel);
    }
  }

  // The same by a panel of kernels that is transformed first.
  void multiply_by_stored(int64_t panel) {
    with_float_type(plan_.w_dtype, [&]<typename W>(W) {
      if constexpr (!std::is_same_v<W, float>) {
        transform_panel(static_cast<const W*>(w_) + panel * 9 * p_.in_channels * kPanel);
      }
    });
    for (int64_t point = 0; point < plan_.points; ++point) {
      const float* u = s_.u + point * plan_.u_point;
      multiply_point(point, u, 0, 1, u + plan_.u_point);
    }
  }

  // By panels [panel, panel + width) of one point; `next` is what will be multiplied by afterwards.
  void multiply_point(int64_t point, const float* u, int64_t panel, int width, const float* next) {
    constexpr int64_t kTapK = 0;
    for (int64_t i = 0; i < count_; ++i) {
      s_.at[i] = s_.x + point * plan_.x_point + i * plan_.width;
    }
    const Rows a{.at = s_.at,
                 .stride = 0,
                 .count = count_,
                 .taps = 1,
                 .run = p_.in_channels,
                 .tap_k = &kTapK};
    const Panels b{.data = u, .k = p_.in_channels};
    multiply_group(a, b, panel, width, nullptr, s_.sums + point * plan_.y_point,
                   reinterpret_cast<const char*>(next));
  }

  // From [9][channels][kPanel] to [points][channels][kPanel].
  template <typename W>
  void transform_panel(const W* w) const {
    const int64_t tap = p_.in_channels * kPanel;
    for (int64_t i = 0; i < tap; i += kLanes) {
      Vec g[9];
#pragma GCC unroll 9
      for (int t = 0; t < 9; ++t) g[t] = load(w + t * tap + i);
      transform_kernels<M>(g, s_.u + i, plan_.u_point);
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
      finish_sums(out_, 0, rows * across, column, columns, s_.tile);
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
  const void* w_;
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

bool transforms_stored(const abi::ConvParams& p) {
  if (!kTransformsStored || p.w_dtype == 0 || p.groups != 1 || p.transposed) return false;
  if (p.x_strides[1] != 1 || p.kernel[0] != 1 || p.kernel[1] != 3 || p.kernel[2] != 3) return false;
  if (p.in_size[0] != 1 || p.out_size[0] != 1 || p.pad[0] != 0) return false;
  for (int d = 1; d < 3; ++d) {
    if (p.stride[d] != 1 || p.dilation[d] != 1) return false;
  }
  if (std::min(p.in_channels, p.out_channels) < kLeastChannels) return false;
  constexpr double kPoints = (kStoredTile + 2) * (kStoredTile + 2);
  const auto parts = [](int64_t size, int64_t part) {
    return static_cast<double>((size + part - 1) / part);
  };
  const auto in = static_cast<double>(p.in_channels), out = static_cast<double>(p.out_channels);
  const double tiles = parts(p.out_size[1], kStoredTile) * parts(p.out_size[2], kStoredTile);
  const double blocks = parts(static_cast<int64_t>(tiles), kFewestTiles);
  const double pixels = static_cast<double>(p.out_size[1]) * static_cast<double>(p.out_size[2]);
  const double transformed = kPoints * tiles * (in * out + kInputTransform * (in + out)) +
                             kKernelTransform * blocks * in * out;
  return transformed < 9 * pixels * in * out;
}

namespace {

Params transformed(const abi::ConvParams& p) {
  Params q{};
  q.batch = p.batch;
  q.in_channels = p.in_channels;
  q.out_channels = p.out_channels;
  std::copy_n(p.in_size, 3, q.in_size);
  std::copy_n(p.out_size, 3, q.out_size);
  std::copy_n(p.kernel, 3, q.kernel);
  std::copy_n(p.stride, 3, q.stride);
  std::copy_n(p.pad, 3, q.pad);
  std::copy_n(p.dilation, 3, q.dilation);
  std::copy_n(p.x_strides, 5, q.x_strides);
  std::copy_n(p.y_strides, 5, q.y_strides);
  std::copy_n(p.r_strides, 5, q.r_strides);
  q.tile = kStoredTile;
  q.x_dtype = p.x_dtype;
  q.y_dtype = p.y_dtype;
  q.r_dtype = p.r_dtype;
  q.has_bias = p.has_bias;
  q.residual = p.residual;
  q.act = p.act;
  q.act_lo = p.act_lo;
  q.act_hi = p.act_hi;
  return q;
}

}  // namespace

int64_t stored_winograd_tasks(const abi::ConvParams& p) {
  const Params of_tiles = transformed(p);
  return Plan(of_tiles, p.w_dtype).cells();
}

int64_t stored_winograd_scratch(const abi::ConvParams& p) {
  const Params of_tiles = transformed(p);
  return Scratch(Plan(of_tiles, p.w_dtype), nullptr).bytes;
}

void run_stored_winograd(const KernelCall& call) {
  if constexpr (kTransformsStored) {
    const auto& p = *static_cast<const abi::ConvParams*>(call.params);
    const Params of_tiles = transformed(p);
    const Plan plan(of_tiles, p.w_dtype);
    Block<kStoredTile> block(plan, call);
    for (int64_t cell = call.begin; cell < call.end; ++cell) block.run(cell);
  }
}

extern const KernelEntry conv_winograd_kernel;
const KernelEntry conv_winograd_kernel = {
    "conv_winograd", Params::kSchema, sizeof(Params), run,      check,
    tasks,           scratch,         nullptr,        in_place, work};

}  // namespace npusim::cpu::NPUSIM_ISA
