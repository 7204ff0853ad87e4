// Times `quantized_linear` and `quantize` at the shapes of a language model of 1.5 billion
// parameters, on every instruction set of this machine, with one thread and with two. One row of x
// (decoding a token): GB/s of quantized weights, against the rate at which the same threads read
// memory they only add up, measured between the runs. 128 rows (a prompt): GFLOP/s. Quantizing:
// GB/s of bfloat16 weights. Every command has weights of its own, so none come from a cache.
//
//   cmake -S benchmarks/kernels -B build/bench -G Ninja && cmake --build build/bench
//   build/bench/quantized_linear_bench [isa [passes [m]]]
#include <cstring>
#include <string>

#include "benchmarks/kernels/measure.h"

namespace {

using namespace npusim;
using bench::Command;
using bench::Isa;
using bench::kRead;
using bench::kReadTask;
using bench::kReadTasks;

constexpr int64_t kMemory = int64_t{1} << 28;

struct Shape {
  int64_t n, k;
  int32_t gated;
};
constexpr Shape kShapes[] = {{2048, 1536, 0}, {8960, 1536, 1}, {1536, 8960, 0}};

struct Format {
  const char* name;
  int32_t code;
  int64_t group;
  double bits;  // an element, with its share of scales and zero points
};
constexpr Format kFormats[] = {{"int8", 1, 0, 8},
                               {"int4-g32", 2, 32, 4.5},
                               {"int4-g64", 2, 64, 4.25},
                               {"int4-g128", 2, 128, 4.125},
                               {"int4-g32-asymmetric", 3, 32, 4.75}};

class Bench {
 public:
  Bench(const Isa& isa, int passes) : isa_(isa), passes_(passes) {}

  void product(const Shape& shape, const Format& format, int64_t m) {
    abi::QuantizedLinearParams p{};
    p.m = m;
    p.n = p.ldy = shape.n;
    p.k = p.ldx = shape.k;
    p.segments = 1;
    p.gated = shape.gated;
    p.rows[0] = shape.n * (1 + shape.gated);
    p.format = format.code;
    p.group = format.group;
    p.x_dtype = p.y_dtype = 2;
    p.act = static_cast<int32_t>(shape.gated ? abi::Opcode::kSilu : abi::Opcode::kCopy);
    const auto elements = static_cast<double>(p.rows[0] * p.k);
    const double bytes = elements * format.bits / 8;
    const auto room = static_cast<int64_t>(bytes * 1.1) / 4096 * 4096 + 8192;
    std::vector<Command> commands;
    auto* data = reinterpret_cast<std::byte*>(memory_.data());
    for (int64_t at = 0; at + room + kReadTask * kReadTasks <= kMemory && commands.size() < 12;) {
      const double flops = 2 * static_cast<double>(m) * elements;
      commands.push_back({&isa_["quantized_linear"], &p, {x_.data(), data + at, y_.data()}, flops});
      at += room;
      if (m > 1) continue;
      commands.push_back({&kRead, &p, {data + at}, 0});
      at += kReadTask * kReadTasks;
    }
    bench::measure(isa_, commands, passes_, 2);
    for (int t = 0; t < 2; ++t) {
      double best = 1, reading = 1;
      for (const Command& c : commands) {
        double& least = c.kernel == &kRead ? reading : best;
        least = std::min(least, c.best[t]);
      }
      std::printf("%-10s %-19s [%3d, %4d] x [%5d, %4d] %-5s %d thread%s %9.1f us ", isa_.name,
                  format.name, static_cast<int>(m), static_cast<int>(p.k),
                  static_cast<int>(p.rows[0]), static_cast<int>(p.k), p.gated ? "gated" : "", t + 1,
                  t ? "s" : " ", best * 1e6);
      if (m == 1) {
        const double rate = static_cast<double>(kReadTask * kReadTasks) / reading;
        std::printf("%6.2f GB/s, %5.1f %% of %.2f\n", bytes / best / 1e9, 100 * bytes / best / rate,
                    rate / 1e9);
      } else {
        std::printf("%6.1f GFLOP/s\n", commands[0].flops / best / 1e9);
      }
    }
  }

  void quantize(const Format& format) {
    abi::QuantizeParams p{};
    p.rows = 8960;
    p.k = p.ldw = 1536;
    p.format = format.code;
    p.group = format.group;
    p.x_dtype = 2;
    std::vector<Command> commands;
    auto* data = reinterpret_cast<std::byte*>(memory_.data());
    commands.push_back({&isa_["quantize"], &p, {data, data + kMemory / 2}, 0});
    bench::measure(isa_, commands, passes_, 2);
    for (int t = 0; t < 2; ++t) {
      const double bytes = 2 * static_cast<double>(p.rows * p.k);
      std::printf("%-10s %-19s quantize %d thread%s %6.2f GB/s\n", isa_.name, format.name, t + 1,
                  t ? "s" : " ", bytes / commands[0].best[t] / 1e9);
    }
  }

 private:
  const Isa& isa_;
  int passes_;
  bench::Array memory_{kMemory / 4}, x_{128 * 8960}, y_{128 * 17920};
};

}  // namespace

int main(int argc, char** argv) {
  const int passes = argc > 2 ? std::atoi(argv[2]) : 10;
  for (const Isa& isa : bench::isas()) {
    if (!isa.runs || (argc > 1 && std::string_view(argv[1]) != isa.name)) continue;
    Bench bench(isa, passes);
    for (const int64_t m : {1, 128}) {
      if (argc > 3 && m != std::atoi(argv[3])) continue;
      for (const Format& format : kFormats) {
        for (const Shape& shape : kShapes) bench.product(shape, format, m);
      }
    }
    for (const Format& format : kFormats) bench.quantize(format);
  }
}
