// Times `linear` over bfloat16 weights as a checkpoint stores them, at the shapes of a language
// model of 1.5 billion parameters, on every instruction set of this machine, with one thread and
// with two. One row of x (decoding a token): GB/s of weights, against the rate at which the same
// threads read memory they only add up. 128 rows (a prompt): GFLOP/s, against the rate of dot
// instructions (of multiply-adds where there are none). Both yardsticks are measured between the
// runs. Every command has weights of its own, so none come from a cache.
//
//   cmake -S benchmarks/kernels -B build/bench -G Ninja && cmake --build build/bench
//   build/bench/linear_bench [isa [passes]]
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

constexpr int64_t kMemory = int64_t{1} << 29;

#if defined(__x86_64__)
// Dot products of pairs that depend on nothing, as `chains` in measure.h.
[[gnu::target("avx512f,avx512bf16")]] double dot_chains(int rounds) {
  __m512 acc[12];
  for (int c = 0; c < 12; ++c) acc[c] = _mm512_set1_ps(static_cast<float>(c));  // no two alike
  __m512i ones = _mm512_set1_epi16(0x3F80);
  asm volatile("" : "+v"(ones));  // the compiler must not know what it multiplies
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m512& a : acc) a = _mm512_dpbf16_ps(a, (__m512bh)ones, (__m512bh)ones);
  }
  __m512 sum = acc[0];
  for (int c = 1; c < 12; ++c) sum += acc[c];
  volatile float keep = sum[0];
  (void)keep;
  return 4.0 * 12 * 16 * rounds;
}
#endif

struct Shape {
  int64_t n, k;
  int32_t gated;
};

// The layer's projections, and the head.
constexpr Shape kShapes[] = {{2048, 1536, 0}, {1536, 1536, 0}, {8960, 1536, 1},
                             {1536, 8960, 0}, {8960, 1536, 0}, {151936, 1536, 0}};

abi::LinearParams params_of(const Shape& shape, int64_t m) {
  abi::LinearParams p{};
  p.m = m;
  p.n = p.ldy = shape.n;
  p.k = p.ldx = p.ldw[0] = shape.k;
  p.segments = 1;
  p.gated = shape.gated;
  p.rows[0] = shape.n * (1 + shape.gated);
  p.x_dtype = p.w_dtype = p.y_dtype = 2;
  p.act = static_cast<int32_t>(shape.gated ? abi::Opcode::kSilu : abi::Opcode::kCopy);
  return p;
}

std::byte* bfloat16_numbers(int64_t bytes) {
  auto* data = static_cast<std::byte*>(std::aligned_alloc(4096, static_cast<size_t>(bytes)));
  uint32_t state = 1;
  for (int64_t i = 0; i < bytes; i += 2) {
    state = state * 1664525 + 1013904223;
    const auto bits = static_cast<uint16_t>(0x3C00 | (state >> 16 & 0x83FF));  // around 2^-5
    std::memcpy(data + i, &bits, 2);
  }
  return data;
}

class Bench {
 public:
  explicit Bench(const Isa& isa, int passes)
      : isa_(isa),
        passes_(passes),
        memory_(bfloat16_numbers(kMemory)),
        x_(bfloat16_numbers(128 * 8960 * 2)),
        y_(bfloat16_numbers(128 * 17920 * 2)) {}
  ~Bench() {
    for (std::byte* data : {memory_, x_, y_}) std::free(data);
  }

  void run(const Shape& shape, int64_t m) {
    const abi::LinearParams p = params_of(shape, m);
    const int64_t bytes = p.rows[0] * p.k * 2;
    const double flops = 2.0 * static_cast<double>(m * p.rows[0] * p.k);
    std::vector<Command> commands;
    // Reads in between are of what the products do not touch, and the other way round.
    for (int64_t at = 0; at + bytes + kReadTask * kReadTasks <= kMemory && commands.size() < 24;) {
      commands.push_back({&isa_["linear"], &p, {x_, memory_ + at, y_}, flops});
      at += (bytes + 4095) / 4096 * 4096;
      if (m > 1) continue;
      commands.push_back({&kRead, &p, {memory_ + at}, 0});
      at += kReadTask * kReadTasks;
    }
    double peak = bench::measure(isa_, commands, passes_, 2);
#if defined(__x86_64__)
    if (std::string_view(isa_.name) == "avx512bf16") peak = dot_peak();
#endif
    for (int t = 0; t < 2; ++t) print(shape, m, commands, t, static_cast<double>(bytes), peak);
  }

 private:
#if defined(__x86_64__)
  static double dot_peak() {
    double best = 0;
    for (int i = 0; i < 20; ++i) {
      const double start = bench::thread_seconds();
      const double flops = dot_chains(5000);
      best = std::max(best, flops / (bench::thread_seconds() - start));
    }
    return best;
  }
#endif

  void print(const Shape& shape, int64_t m, const std::vector<Command>& commands, int t,
             double bytes, double peak) const {
    double linear = 1, reading = 1;
    for (const Command& c : commands) {
      double& best = c.kernel == &kRead ? reading : linear;
      best = std::min(best, c.best[t]);
    }
    std::printf("%-10s [%3d, %4d] x [%d, %4d] %-5s %d thread%s %9.1f us ", isa_.name,
                static_cast<int>(m), static_cast<int>(shape.k),
                static_cast<int>(shape.n * (1 + shape.gated)), static_cast<int>(shape.k),
                shape.gated ? "gated" : "", t + 1, t ? "s" : " ", linear * 1e6);
    if (m == 1) {
      const double read_rate = static_cast<double>(kReadTask * kReadTasks) / reading;
      std::printf("%6.2f GB/s, %5.1f %% of %.2f\n", bytes / linear / 1e9,
                  100 * bytes / linear / read_rate, read_rate / 1e9);
    } else {
      const double rate = commands[0].flops / linear;
      std::printf("%6.1f GFLOP/s, %5.1f %% of %.1f\n", rate / 1e9, 100 * rate / peak / (t + 1),
                  peak * (t + 1) / 1e9);
    }
  }

  const Isa& isa_;
  int passes_;
  std::byte *memory_, *x_, *y_;
};

}  // namespace

int main(int argc, char** argv) {
  const int passes = argc > 2 ? std::atoi(argv[2]) : 10;
  for (const Isa& isa : bench::isas()) {
    if (!isa.runs || (argc > 1 && std::string_view(argv[1]) != isa.name)) continue;
    Bench bench(isa, passes);
    for (const Shape& shape : kShapes) bench.run(shape, 1);
    for (const Shape& shape : kShapes) {
      if (shape.n < 100000) bench.run(shape, 128);
    }
  }
}
