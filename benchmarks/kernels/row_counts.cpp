// Times one thread's products, in time of the processor, by the number of rows of x:
// `quantized_linear`, and with the argument `linear` products over weights of 16 bits that lie in
// memory. Stands on the kernels of one instruction set alone, so that two versions of them can be
// built and timed in turns:
//
//   F="-std=c++20 -O3 -I. -Iinclude -DNPUSIM_ISA=set -fno-exceptions -march=native
//      -mprefer-vector-width=512"
//   K=kernels/cpu; g++ $F benchmarks/kernels/row_counts.cpp
//   $K/{{quantized_,}linear,epilogue,unary}.cpp
//   ./a.out [linear]
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string_view>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "kernels/shared/abi.h"

namespace npusim::cpu::NPUSIM_ISA {
extern const KernelEntry quantized_linear_kernel, linear_kernel;
}

namespace {

using namespace npusim;

struct Shape {
  int64_t n, k;
  int32_t gated;
};

struct NoFailure : cpu::Failure {
  void report(const char*, int64_t, int64_t) noexcept override {}
};

// Numbers of 16 bits around 2^-4, of either sign, as bfloat16 and as float16.
std::vector<uint16_t> numbers(size_t count, uint16_t bits) {
  std::vector<uint16_t> made(count);
  uint32_t state = 1;
  for (uint16_t& number : made) {
    state = state * 1664525 + 1013904223;
    number = static_cast<uint16_t>(bits | (state >> 16 & 0x83FF));
  }
  return made;
}

// Of this thread: others of a busy machine do not count.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The best of `times` runs, in seconds.
double best_of(int times, const cpu::KernelEntry& kernel, const void* params,
               void* const* operands) {
  std::vector<std::byte> scratch(static_cast<size_t>(kernel.scratch(params)) + 64);
  const auto base = (reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64;
  NoFailure failure;
  double best = 1e9;
  for (int i = 0; i < times; ++i) {
    const double start = thread_seconds();
    const int64_t tasks = kernel.tasks(params, 1);
    for (int64_t task = 0; task < tasks; ++task) {
      kernel.run(
          {params, operands, task, task + 1, reinterpret_cast<void*>(base), &failure, task == 0});
    }
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

template <typename Params>
Params params_of(const Shape& shape, int64_t m) {
  Params p{};
  p.m = m;
  p.n = p.ldy = shape.n;
  p.k = p.ldx = shape.k;
  p.segments = 1;
  p.gated = shape.gated;
  p.rows[0] = shape.n * (1 + shape.gated);
  p.x_dtype = p.y_dtype = 2;
  p.act = static_cast<int32_t>(shape.gated ? abi::Opcode::kSilu : abi::Opcode::kCopy);
  return p;
}

void print(const char* what, const Shape& shape, int64_t m, double seconds) {
  const double products = static_cast<double>(m * shape.n * (1 + shape.gated) * shape.k);
  std::printf("%-9s [%3d, %4d] x [%5d] %9.1f us %6.1f G products/s\n", what, static_cast<int>(m),
              static_cast<int>(shape.k), static_cast<int>(shape.n * (1 + shape.gated)),
              seconds * 1e6, products / seconds / 1e9);
}

void quantized() {
  struct Format {
    const char* name;
    int32_t code;
    int64_t group;
  };
  constexpr Format kFormats[] = {
      {"int8", 1, 0}, {"int4-32", 2, 32}, {"int4a-32", 3, 32}, {"int4-128", 2, 128}};
  constexpr Shape kShapes[] = {{2048, 1536, 0}, {1536, 8960, 0}, {4096, 1536, 1}};
  std::vector<uint16_t> w = numbers(20 << 20, 0x2C00), x = numbers(128 * 8960, 0x3C00),
                        y(128 * 8960);
  void* operands[] = {x.data(), w.data(), y.data()};
  for (const Shape& shape : kShapes) {
    for (const Format& format : kFormats) {
      for (const int64_t m : {1, 2, 3, 4, 8, 16, 17, 32, 64, 128}) {
        auto p = params_of<abi::QuantizedLinearParams>(shape, m);
        p.format = format.code;
        p.group = format.group;
        const auto& kernel = cpu::NPUSIM_ISA::quantized_linear_kernel;
        print(format.name, shape, m, best_of(m < 16 ? 9 : 5, kernel, &p, operands));
      }
    }
  }
}

void linear() {
  constexpr Shape kShapes[] = {{2048, 1536, 0}, {2048, 2048, 0}, {4864, 896, 1},
                               {896, 896, 0},   {1536, 8960, 0}, {4096, 1536, 1}};
  std::vector<uint16_t> w = numbers(320 << 20, 0x2C00), x = numbers(128 * 8960, 0x3C00),
                        y(128 * 8960);
  size_t at = 0;  // each run reads weights that no cache has
  for (const Shape& shape : kShapes) {
    const auto count = static_cast<size_t>(shape.n * (1 + shape.gated) * shape.k);
    for (const int32_t dtype : {2, 1}) {
      for (const int64_t m : {1, 2, 3, 4, 6, 7, 8, 12, 13, 18, 19}) {
        auto p = params_of<abi::LinearParams>(shape, m);
        p.w_dtype = dtype;
        p.ldw[0] = shape.k;
        double best = 1e9;
        for (int i = 0; i < 12; ++i) {
          if (at + count > w.size()) at = 0;
          void* operands[] = {x.data(), w.data() + at, y.data()};
          at += (count + 2047) / 2048 * 2048;
          best = std::min(best, best_of(1, cpu::NPUSIM_ISA::linear_kernel, &p, operands));
        }
        print(dtype == 2 ? "bfloat16" : "float16", shape, m, best);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  argc > 1 && std::string_view(argv[1]) == "linear" ? linear() : quantized();
}
