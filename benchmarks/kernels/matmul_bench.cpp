// Times the convolutions of ResNet-18 and ResNet-50 (batch 1, 224 x 224), the linear layers of
// BERT-base (128 tokens) and ViT-B/16, and depthwise convolutions, in network order with weights of
// their own, so that caches are as warm as in a real run. Prints each distinct shape's best time
// and share of the multiply-add peak, with one thread and with two.
//
//   cmake -S benchmarks/kernels -B build/bench -G Ninja && cmake --build build/bench
//   build/bench/matmul_bench [isa] [resnet18|resnet50|bert|vit|depthwise|mlp] [passes] [tile]
//
// tile: 2 or 4 runs the stride-1 3x3 layers by Winograd's F(tile x tile, 3x3).
#include <cstring>
#include <deque>
#include <map>
#include <string>

#include "benchmarks/kernels/measure.h"

namespace {

using namespace npusim;
using bench::Array;
using bench::Command;

// The commands of one network, and all the memory they use.
class Network {
 public:
  explicit Network(const bench::Isa& isa) : isa_(isa), x_(1 << 22), y_(1 << 22) {}

  // `tile`: 0 direct, 2 or 4 Winograd.
  void conv(int64_t channels, int64_t columns, int64_t in, int64_t kernel, int64_t stride,
            int count, int tile = 0) {
    const int64_t pad = kernel == 16 ? 0 : kernel / 2, out = (in + 2 * pad - kernel) / stride + 1;
    for (int i = 0; i < count; ++i) {
      if (tile) {
        add_conv<abi::ConvWinogradParams>(channels, columns, in, out, kernel, stride, pad, tile);
      } else {
        add_conv<abi::ConvParams>(channels, columns, in, out, kernel, stride, pad, 0);
      }
    }
  }

  void depthwise(int64_t channels, int64_t in, int64_t kernel, int64_t stride, int count) {
    const int64_t pad = kernel / 2, out = (in + 2 * pad - kernel) / stride + 1;
    for (int i = 0; i < count; ++i) {
      add_conv<abi::ConvDepthwiseParams>(channels, channels, in, out, kernel, stride, pad, 0);
    }
  }

  void gemm(int64_t m, int64_t n, int64_t k, int count) {
    for (int i = 0; i < count; ++i) {
      auto& p = gemms_.emplace_back();
      p.m = m;
      p.n = n;
      p.k = p.ldx = k;
      p.ldy = n;
      p.has_bias = 1;
      label("gemm " + std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k));
      push("gemm", &p, {x_.data(), weights((n + 15) / 16 * 16 * k), weights(n), y_.data()},
           2.0 * static_cast<double>(m * n * k));
    }
  }

  void measure(int passes) {
    const double peak = bench::measure(isa_, commands_, passes, 2);
    std::printf("%-8s multiply-add peak of a core: %.1f GFLOP/s\n", isa_.name, peak / 1e9);
    std::map<std::string, bool> seen;
    double total[2] = {}, flops = 0;
    for (size_t i = 0; i < commands_.size(); ++i) {
      double best[2] = {1e9, 1e9};
      int count = 0;
      for (size_t j = 0; j < commands_.size(); ++j) {
        if (labels_[i] != labels_[j]) continue;
        ++count;
        for (int t : {0, 1}) best[t] = std::min(best[t], commands_[j].best[t]);
      }
      for (int t : {0, 1}) total[t] += commands_[i].best[t];
      flops += commands_[i].flops;
      if (!seen.emplace(labels_[i], true).second) continue;
      print(labels_[i].c_str(), count, commands_[i].flops, best, peak);
    }
    print("all", 1, flops, total, peak);
  }

 private:
  static void print(const char* what, int count, double flops, const double (&best)[2],
                    double peak) {
    std::printf("%-32s x%-3d %9.1f us %7.1f GFLOP/s %5.1f %%  | 2 threads %9.1f us %5.1f %%\n",
                what, count, best[0] * 1e6, flops / best[0] / 1e9, 100 * flops / best[0] / peak,
                best[1] * 1e6, 100 * flops / best[1] / (2 * peak));
  }

  void label(std::string text) { labels_.push_back(std::move(text)); }
  float* weights(int64_t n) { return weights_.emplace_back(n).data(); }

  void push(const char* kernel, const void* params, std::vector<void*> operands, double flops) {
    commands_.push_back({&isa_[kernel], params, std::move(operands), flops});
  }

  template <typename Params>
  void add_conv(int64_t channels, int64_t columns, int64_t in, int64_t out, int64_t kernel,
                int64_t stride, int64_t pad, int tile) {
    Params& p = params_of<Params>().emplace_back();
    p.batch = 1;
    p.in_channels = channels;
    p.out_channels = columns;
    for (int d = 0; d < 3; ++d) {
      p.in_size[d] = d ? in : 1;
      p.out_size[d] = d ? out : 1;
      p.kernel[d] = d ? kernel : 1;
      p.stride[d] = d ? stride : 1;
      p.pad[d] = d ? pad : 0;
      p.dilation[d] = 1;
    }
    const bool planar = channels == 3;
    const int64_t x[] = {in * in * channels, planar ? in * in : 1, 0, in * (planar ? 1 : channels),
                         planar ? 1 : channels};
    const int64_t y[] = {out * out * columns, 1, 0, out * columns, columns};
    std::copy(x, x + 5, p.x_strides);
    std::copy(y, y + 5, p.y_strides);
    p.has_bias = 1;
    p.act = static_cast<int32_t>(abi::Opcode::kRelu);
    int64_t taps = kernel * kernel;
    if constexpr (requires { p.groups; }) p.groups = 1;
    if constexpr (requires { p.tile; }) {
      p.tile = tile;
      taps = (tile + 2) * (tile + 2);
    }
    constexpr bool depthwise = std::is_same_v<Params, abi::ConvDepthwiseParams>;
    const int64_t depth = depthwise ? 1 : channels;
    label(std::to_string(channels) + "->" + std::to_string(columns) + " " + std::to_string(kernel) +
          "x" + std::to_string(kernel) + " s" + std::to_string(stride) + " " + std::to_string(in) +
          (tile        ? " F" + std::to_string(tile)
           : depthwise ? " depthwise"
                       : ""));
    push(tile        ? "conv_winograd"
         : depthwise ? "conv_depthwise"
                     : "conv",
         &p,
         {x_.data(), weights((columns + 15) / 16 * 16 * taps * depth), weights(columns), y_.data()},
         2.0 * static_cast<double>(out * out * columns * kernel * kernel * depth));
  }

  template <typename Params>
  std::deque<Params>& params_of() {
    if constexpr (std::is_same_v<Params, abi::ConvParams>) {
      return convs_;
    } else if constexpr (std::is_same_v<Params, abi::ConvDepthwiseParams>) {
      return depthwises_;
    } else {
      return winograds_;
    }
  }

  const bench::Isa& isa_;
  Array x_, y_;
  std::deque<abi::ConvParams> convs_;
  std::deque<abi::ConvDepthwiseParams> depthwises_;
  std::deque<abi::ConvWinogradParams> winograds_;
  std::deque<abi::GemmParams> gemms_;
  std::deque<Array> weights_;
  std::vector<Command> commands_;
  std::vector<std::string> labels_;
};

// `tile` for the stride-1 3x3 layers.
void resnet18(Network& net, int tile) {
  net.conv(3, 64, 224, 7, 2, 1);
  net.conv(64, 64, 56, 3, 1, 4, tile);
  int64_t channels = 64, size = 56;
  for (int stage = 0; stage < 3; ++stage, channels *= 2, size /= 2) {
    net.conv(channels, 2 * channels, size, 3, 2, 1);
    net.conv(channels, 2 * channels, size, 1, 2, 1);
    net.conv(2 * channels, 2 * channels, size / 2, 3, 1, 3, tile);
  }
  net.gemm(1, 1000, 512, 1);
}

void resnet50(Network& net, int tile) {
  net.conv(3, 64, 224, 7, 2, 1);
  int64_t in = 64, width = 64, size = 56;
  constexpr int kBlocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage, width *= 2) {
    const int64_t out = 4 * width, stride = stage ? 2 : 1;
    net.conv(in, width, size, 1, 1, 1);
    net.conv(width, width, size, 3, stride, 1, stride == 1 ? tile : 0);
    net.conv(in, out, size, 1, stride, 1);
    size /= stride;
    net.conv(width, out, size, 1, 1, kBlocks[stage]);
    net.conv(out, width, size, 1, 1, kBlocks[stage] - 1);
    net.conv(width, width, size, 3, 1, kBlocks[stage] - 1, tile);
    in = out;
  }
  net.gemm(1, 1000, 2048, 1);
}

void encoder(Network& net, int64_t tokens) {
  for (int layer = 0; layer < 12; ++layer) {
    net.gemm(tokens, 2304, 768, 1);
    net.gemm(tokens, 768, 768, 1);
    net.gemm(tokens, 3072, 768, 1);
    net.gemm(tokens, 768, 3072, 1);
  }
}

// The depthwise convolutions of MobileNetV2 and ConvNeXt-T.
void depthwise(Network& net) {
  net.depthwise(32, 112, 3, 1, 1);
  net.depthwise(96, 112, 3, 2, 1);
  net.depthwise(144, 56, 3, 1, 1);
  net.depthwise(144, 56, 3, 2, 1);
  net.depthwise(192, 28, 3, 1, 2);
  net.depthwise(192, 28, 3, 2, 1);
  net.depthwise(384, 14, 3, 1, 4);
  net.depthwise(576, 14, 3, 2, 1);
  net.depthwise(960, 7, 3, 1, 3);
  for (int stage = 0; stage < 4; ++stage) net.depthwise(96 << stage, 56 >> stage, 7, 1, 1);
}

void bench_network(const bench::Isa& isa, std::string_view name, int passes, int tile) {
  Network net(isa);
  if (name == "resnet18") resnet18(net, tile);
  if (name == "resnet50") resnet50(net, tile);
  if (name == "bert") encoder(net, 128);
  if (name == "vit") {
    net.conv(3, 768, 224, 16, 16, 1);
    encoder(net, 197);
  }
  if (name == "depthwise") depthwise(net);
  if (name == "mlp") {
    net.gemm(1, 16, 16, 20);
    net.gemm(1, 4096, 4096, 2);
    net.gemm(4, 4096, 4096, 2);
  }
  std::printf("\n%.*s\n", static_cast<int>(name.size()), name.data());
  net.measure(passes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view isa_name = argc > 1 ? argv[1] : "";
  const std::string_view network = argc > 2 ? argv[2] : "";
  const int passes = argc > 3 ? std::atoi(argv[3]) : 50;
  const int tile = argc > 4 ? std::atoi(argv[4]) : 0;
  for (const bench::Isa& isa : bench::isas()) {
    if (!isa.runs || (!isa_name.empty() && isa_name != isa.name)) continue;
    for (const char* name : {"resnet18", "resnet50", "bert", "vit", "depthwise", "mlp"}) {
      if (network.empty() || network == name) bench_network(isa, name, passes, tile);
    }
  }
}
