// Random convolutions and how their outputs are checked; shared by the tests of conv,
// conv_depthwise and conv_winograd, whose parameter structs have the same window and epilogue.
#pragma once

#include "tests/cpp/kernel_call.h"

namespace npusim::cpu {

// Strides (batch, channel, depth, height, width) of a dense tensor.
inline void channels_last(int64_t channels, const int64_t (&size)[3], int64_t (&strides)[5]) {
  strides[1] = 1;
  strides[4] = channels;
  strides[3] = strides[4] * size[2];
  strides[2] = strides[3] * size[1];
  strides[0] = strides[2] * size[0];
}
inline void channels_first(int64_t channels, const int64_t (&size)[3], int64_t (&strides)[5]) {
  strides[4] = 1;
  strides[3] = size[2];
  strides[2] = size[1] * size[2];
  strides[1] = size[0] * strides[2];
  strides[0] = channels * strides[1];
}

// Elements from the first to the last of a tensor with these strides.
inline int64_t extent(int64_t batch, int64_t channels, const int64_t (&size)[3],
                      const int64_t (&strides)[5]) {
  return (batch - 1) * strides[0] + (channels - 1) * strides[1] + (size[0] - 1) * strides[2] +
         (size[1] - 1) * strides[3] + (size[2] - 1) * strides[4] + 1;
}

// A window of `dimensions` dimensions with at least one output each, padding that may differ
// between front and back, and sizes that need not divide.
template <typename Params>
void random_window(Params& p, int dimensions, bool transposed, std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int d = 0; d < 3; ++d) {
    const bool used = d >= 3 - dimensions;
    p.kernel[d] = used ? 1 + below(4) : 1;
    p.stride[d] = used ? 1 + below(3) : 1;
    p.dilation[d] = used ? 1 + below(3) : 1;
    const int64_t reach = (p.kernel[d] - 1) * p.dilation[d] + 1;
    p.in_size[d] = used ? 1 + below(dimensions == 3 ? 6 : dimensions == 2 ? 14 : 150) : 1;
    p.pad[d] = used ? below(reach + 1) : 0;
    const int64_t back = used ? below(reach + 1) : 0;
    const int64_t full = transposed ? (p.in_size[d] - 1) * p.stride[d] + reach - p.pad[d] - back
                                    : (p.in_size[d] + p.pad[d] + back - reach) / p.stride[d] + 1;
    p.out_size[d] = std::max<int64_t>(1, full);
  }
}

template <typename Params>
void random_layout(Params& p, std::mt19937& random) {
  channels_last(p.in_channels + static_cast<int64_t>(random() % 3), p.in_size, p.x_strides);
  if (random() % 4 == 0) channels_first(p.in_channels, p.in_size, p.x_strides);
  channels_last(p.out_channels + static_cast<int64_t>(random() % 3), p.out_size, p.y_strides);
  channels_last(p.out_channels + static_cast<int64_t>(random() % 3), p.out_size, p.r_strides);
}

template <typename Params>
void random_epilogue(Params& p, std::mt19937& random) {
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  p.x_dtype = below(2) ? 0 : below(3);
  p.y_dtype = below(2) ? 0 : below(3);
  p.r_dtype = below(2) ? 0 : below(3);
  p.has_bias = below(4);  // vectors: the bias, factors, offsets
  p.residual = below(3);
  p.act = static_cast<int32_t>(kTestedActivations[below(8)]);
  p.act_lo = -1.5F;
  p.act_hi = 2.25F;
}

template <typename Params>
std::string describe(const Params& p, const char* kernel, const char* isa) {
  std::string out = std::string(isa) + " " + kernel;
  const auto list = [&](const char* name, const auto& values) {
    out.append(" ").append(name);
    for (const int64_t v : values) out.append(" ").append(std::to_string(v));
  };
  list("batch, channels", std::initializer_list<int64_t>{p.batch, p.in_channels, p.out_channels});
  list("in", p.in_size);
  list("out", p.out_size);
  list("kernel", p.kernel);
  list("stride", p.stride);
  list("pad", p.pad);
  list("dilation", p.dilation);
  list("x strides", p.x_strides);
  list("dtypes", std::initializer_list<int64_t>{p.x_dtype, p.y_dtype, p.r_dtype});
  list("vectors, residual, act", std::initializer_list<int64_t>{p.has_bias, p.residual, p.act});
  return out;
}

// x, [bias], [residual], y.
template <typename Params>
std::vector<Operand> random_operands(const Params& p, std::mt19937& random) {
  std::vector<Operand> out;
  out.push_back(
      random_operand(p.x_dtype, extent(p.batch, p.in_channels, p.in_size, p.x_strides), random));
  if (p.has_bias) out.push_back(random_operand(0, p.has_bias * p.out_channels, random));
  if (p.residual) {
    out.push_back(random_operand(p.r_dtype,
                                 extent(p.batch, p.out_channels, p.out_size, p.r_strides), random));
  }
  out.push_back(
      random_operand(p.y_dtype, extent(p.batch, p.out_channels, p.out_size, p.y_strides), random));
  return out;
}

// Runs `kernel` on x and w, given in `operands`, and compares every output with what `sum`
// (image, channel, position) makes of the window. `tolerance` scales the bound of the comparison.
template <typename Params, typename Sum>
void check_convolution(const KernelEntry& kernel, const Params& p, std::vector<Operand> operands,
                       std::mt19937& random, double terms, Sum&& sum, const char* isa,
                       double tolerance = 1) {
  std::vector<Operand> rest = random_operands(p, random);
  operands.insert(operands.end(), rest.begin() + 1, rest.end());
  run_kernel(kernel, p, operands, random);
  const std::vector<double> vectors =
      p.has_bias ? values_of(operands[2], 0) : std::vector<double>{};
  const auto vector = [&](int index, int64_t channel, double none) {
    if (index >= p.has_bias) return none;
    return vectors[static_cast<size_t>(index * p.out_channels + channel)];
  };
  const std::vector<double> residual =
      p.residual ? values_of(operands[operands.size() - 2], p.r_dtype) : std::vector<double>{};
  const std::vector<double> y = values_of(operands.back(), p.y_dtype);
  const std::string where = describe(p, kernel.name, isa);
  const auto offset = [](const int64_t (&s)[5], int64_t n, int64_t c, const int64_t (&o)[3]) {
    return static_cast<size_t>(n * s[0] + c * s[1] + o[0] * s[2] + o[1] * s[3] + o[2] * s[4]);
  };
  int64_t o[3];
  for (int64_t n = 0; n < p.batch; ++n) {
    for (o[0] = 0; o[0] < p.out_size[0]; ++o[0]) {
      for (o[1] = 0; o[1] < p.out_size[1]; ++o[1]) {
        for (o[2] = 0; o[2] < p.out_size[2]; ++o[2]) {
          for (int64_t c = 0; c < p.out_channels; ++c) {
            double want = sum(n, c, o) * vector(1, c, 1) + vector(0, c, 0);
            const double r = p.residual ? residual[offset(p.r_strides, n, c, o)] : 0;
            if (p.residual == 1) want += r;
            want = reference_activation(static_cast<abi::Opcode>(p.act), want, p.act_lo, p.act_hi);
            if (p.residual == 2) want += r;
            want += vector(2, c, 0);
            expect_close(y[offset(p.y_strides, n, c, o)], want, p.y_dtype,
                         terms * tolerance * tolerance, where);
          }
        }
      }
    }
  }
}

}  // namespace npusim::cpu
