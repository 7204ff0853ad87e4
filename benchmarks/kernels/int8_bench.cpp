// Times `conv_int8` at the layers of ResNet-50 (batch 1) and of BERT-base (128 tokens), bytes in
// and out, on one thread: G multiply-adds a second, against the rate of dot instructions of bytes
// (of float multiply-adds where there are none), measured in the same program.
//
//   cmake -S benchmarks/kernels -B build/bench -G Ninja && cmake --build build/bench
//   build/bench/int8_bench [isa]
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>
#include <string>

#include "benchmarks/kernels/measure.h"

namespace {

using namespace npusim;
using bench::Isa;
using Params = abi::ConvInt8Params;

constexpr auto kInt8 = static_cast<int32_t>(abi::DType::kInt8);
constexpr auto kUint8 = static_cast<int32_t>(abi::DType::kUint8);

#if defined(__x86_64__)
// Dot products of quads that depend on nothing, as `chains` in measure.h.
[[gnu::target("avx512f,avx512vnni")]] double quad_chains(int rounds) {
  __m512i acc[12];
  for (int c = 0; c < 12; ++c) acc[c] = _mm512_set1_epi32(c);  // no two alike
  __m512i ones = _mm512_set1_epi8(1);
  asm volatile("" : "+v"(ones));  // the compiler must not know what it multiplies
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m512i& a : acc) a = _mm512_dpbusd_epi32(a, ones, ones);
  }
  int sum = 0;
  for (const __m512i& a : acc) sum += _mm512_cvtsi512_si32(a);
  volatile int keep = sum;
  (void)keep;
  return 12.0 * 64 * rounds;
}
#endif

double peak_of(const Isa& isa) {
#if defined(__x86_64__)
  if (std::string_view(isa.name) == "avx512bf16") {
    double best = 0;
    for (int i = 0; i < 8; ++i) {
      const double start = bench::thread_seconds();
      const double products = quad_chains(20000);
      best = std::max(best, products / (bench::thread_seconds() - start));
    }
    return best;
  }
#endif
  return isa.peak() / 2;
}

// A convolution of a square image, or a product of `size` rows where `kernel` is 0.
struct Layer {
  int64_t channels, columns, size, kernel, stride;
};
constexpr Layer kLayers[] = {{3, 64, 224, 7, 2},    {64, 64, 56, 1, 1},     {64, 64, 56, 3, 1},
                             {64, 256, 56, 1, 1},   {256, 64, 56, 1, 1},    {128, 128, 56, 3, 2},
                             {128, 512, 28, 1, 1},  {512, 128, 28, 1, 1},   {128, 128, 28, 3, 1},
                             {1024, 256, 14, 1, 1}, {256, 256, 14, 3, 1},   {256, 1024, 14, 1, 1},
                             {2048, 512, 7, 1, 1},  {512, 512, 7, 3, 1},    {512, 2048, 7, 1, 1},
                             {768, 768, 128, 0, 1}, {768, 3072, 128, 0, 1}, {3072, 768, 128, 0, 1}};

Params params_of(const Layer& layer) {
  Params p{};
  const bool product = layer.kernel == 0;
  const int64_t kernel = std::max<int64_t>(layer.kernel, 1), pad = kernel / 2;
  p.batch = p.groups = 1;
  p.in_channels = p.x_group = layer.channels;
  p.out_channels = p.y_group = p.scales = layer.columns;
  for (int d = 0; d < 3; ++d) {
    const bool used = d == 2 || (d == 1 && !product);
    p.in_size[d] = used ? layer.size : 1;
    p.kernel[d] = used ? kernel : 1;
    p.stride[d] = used ? layer.stride : 1;
    p.dilation[d] = 1;
    p.pad[d] = used ? pad : 0;
    p.out_size[d] = (p.in_size[d] + 2 * p.pad[d] - p.kernel[d]) / p.stride[d] + 1;
  }
  const auto dense = [](int64_t channels, const int64_t (&size)[3], int64_t (&strides)[5]) {
    strides[1] = 1;
    strides[4] = channels;
    strides[3] = channels * size[2];
    strides[2] = strides[3] * size[1];
    strides[0] = strides[2] * size[0];
  };
  dense(p.in_channels, p.in_size, p.x_strides);
  dense(p.out_channels, p.out_size, p.y_strides);
  p.x_dtype = p.y_dtype = kUint8;
  p.w_dtype = kInt8;
  p.has_x_zero = p.has_y_zero = p.has_sum_bias = 1;
  return p;
}

class Empty final : public cpu::Failure {
  void report(const char*, int64_t, int64_t) noexcept override {}
};

// Seconds of the fastest of many runs.
double time_layer(const cpu::KernelEntry& kernel, const Params& p) {
  const int64_t k = p.kernel[1] * p.kernel[2] * p.in_channels;
  const int64_t packed = (p.out_channels + 15) / 16 * 16 * ((k + 3) / 4 * 4 + 4);
  std::vector<bench::Array> operands;
  for (const int64_t bytes : {p.x_strides[0], packed, int64_t{4}, 4 * p.out_channels,
                              4 * p.out_channels, int64_t{4}, p.y_strides[0]}) {
    operands.emplace_back(bytes / 4 + 16);
  }
  std::vector<void*> pointers;
  for (const bench::Array& each : operands) pointers.push_back(each.data());
  const auto scratch = static_cast<size_t>(kernel.scratch(&p) + 63) / 64 * 64;
  void* space = std::aligned_alloc(64, std::max<size_t>(scratch, 64));
  Empty failure;
  double best = 1e9;
  for (int i = 0; i < 40; ++i) {
    const double start = bench::thread_seconds();
    kernel.run({&p, pointers.data(), 0, kernel.tasks(&p, 1), space, &failure, true});
    best = std::min(best, bench::thread_seconds() - start);
  }
  std::free(space);
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  for (const Isa& isa : bench::isas()) {
    if (!isa.runs || (argc > 1 && argv[1] != std::string_view(isa.name))) continue;
    const double peak = peak_of(isa);
    std::printf("%s: peak %.0f GMAC/s\n", isa.name, peak / 1e9);
    for (const Layer& layer : kLayers) {
      const Params p = params_of(layer);
      const double seconds = time_layer(isa["conv_int8"], p);
      const double products = static_cast<double>(p.out_size[1] * p.out_size[2] * p.out_channels) *
                              static_cast<double>(p.kernel[1] * p.kernel[2] * p.in_channels);
      std::printf("%5ld -> %4ld, %3ld, kernel %ld, stride %ld %9.1f us %7.1f GMAC/s %5.1f %%\n",
                  layer.channels, layer.columns, layer.size, layer.kernel, layer.stride,
                  seconds * 1e6, products / seconds / 1e9, 100 * products / seconds / peak);
    }
  }
}
