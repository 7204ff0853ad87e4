// Times attention and matmul on one thread for every instruction set of this machine, and prints
// GFLOP/s and the share of the multiply-add peak measured in the same run. Then attention over the
// caches of a language model, with one thread and with two: layer after layer, as a token takes
// them, so that keys and values come from memory when they do so in the model.
//
//   cmake -S . -B build -G Ninja -DNPUSIM_PYTHON=OFF && cmake --build build
//   c++ -O2 -std=c++20 -pthread -I. -o attention_bench benchmarks/kernels/attention_bench.cpp
//       build/libnpusim_runtime.a
//   ./attention_bench [isa [caches]]
#include <cstring>

#include "benchmarks/kernels/measure.h"

namespace {

using namespace npusim;
using bench::Isa;
using cpu::KernelEntry;

// Seconds of one call: the best of many samples, each long enough for the clock.
template <typename F>
double seconds(F&& f) {
  constexpr double kSample = 50e-6, kTotal = 0.2;
  double best = INFINITY;
  int calls = 1;
  for (double spent = 0; spent < kTotal;) {
    const double start = bench::thread_seconds();
    for (int i = 0; i < calls; ++i) f();
    const double sample = bench::thread_seconds() - start;
    spent += sample;
    if (sample < kSample) {
      calls *= 2;
    } else {
      best = std::min(best, sample / calls);
    }
  }
  return best;
}

template <typename Params>
double time_kernel(const KernelEntry& kernel, const Params& p, std::vector<void*> operands) {
  std::vector<int64_t> extents(operands.size(), int64_t{1} << 40), before(operands.size());
  if (const char* why = kernel.check({&p, extents, before})) {
    std::fprintf(stderr, "%s: %s\n", kernel.name, why);
    std::exit(1);
  }
  const auto bytes = static_cast<size_t>(kernel.scratch(&p)) / 64 * 64 + 64;
  void* scratch = std::aligned_alloc(64, bytes);
  const double s =
      seconds([&] { kernel.run({&p, operands.data(), 0, kernel.tasks(&p, 1), scratch, nullptr}); });
  std::free(scratch);
  return s;
}

std::vector<float> numbers(int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::sin(static_cast<float>(i));
  return out;
}

void print_row(const char* what, const Isa& isa, double s, double flops, double peak) {
  std::printf("%-8s %-34s %10.2f us %8.1f GFLOP/s %5.1f %%\n", isa.name, what, s * 1e6,
              flops / s / 1e9, 100 * flops / s / peak);
}

struct AttentionShape {
  const char* name;
  int64_t heads, kv_heads, q_len, kv_len, head_dim;
  bool causal;
};

// Operands as a fused projection leaves them: heads inside positions.
void bench_attention(const Isa& isa, const AttentionShape& shape, int32_t dtype, double peak) {
  const auto [name, heads, kv_heads, q_len, kv_len, dim, causal] = shape;
  abi::AttentionParams p{};
  p.batch = 1;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.head_dim = p.v_dim = dim;
  p.dtype = dtype;
  p.causal = causal;
  p.causal_offset = kv_len - q_len;
  p.scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const auto fill = [dim = dim](int64_t (&s)[3], int64_t h) {
    s[1] = dim;
    s[2] = h * dim;
  };
  fill(p.q_strides, heads);
  fill(p.k_strides, kv_heads);
  fill(p.v_strides, kv_heads);
  fill(p.y_strides, heads);
  auto q = numbers(heads * q_len * dim), y = q;
  auto k = numbers(kv_heads * kv_len * dim), v = k;
  if (dtype != 0) {  // any bits that are small numbers in both 16-bit formats
    for (auto* x : {&q, &k, &v}) std::memset(x->data(), 0x3C, x->size() * sizeof(float));
  }
  const double s = time_kernel(isa["attention"], p, {q.data(), k.data(), v.data(), y.data()});
  const double seen = causal ? 0.5 : 1;
  const double work = 4.0 * static_cast<double>(heads * q_len * kv_len * dim) * seen;
  char label[64];
  std::snprintf(label, sizeof label, "%s%s", name, dtype == 1 ? " f16" : dtype == 2 ? " bf16" : "");
  print_row(label, isa, s, work, peak);
}

// Bytes of bfloat16 numbers within [1, 2): what matters is that none is special.
std::vector<std::byte> bfloat16_ones(int64_t n) {
  return std::vector<std::byte>(static_cast<size_t>(n) * 2, std::byte{0x3F});
}

// 28 layers of 12 query and 2 key/value heads of 128 elements (Qwen2.5-1.5B), in bfloat16.
void bench_cache(const Isa& isa, int64_t q_len, int64_t position) {
  constexpr int64_t kLayers = 28, kHeads = 12, kKvHeads = 2, kDim = 128, kCapacity = 4096 + 128;
  abi::AttentionParams p{};
  p.batch = 1;
  p.heads = kHeads;
  p.kv_heads = kKvHeads;
  p.q_len = q_len;
  p.kv_len = kCapacity;
  p.head_dim = p.v_dim = kDim;
  p.dtype = 2;
  p.causal = p.has_position = 1;
  p.scale = 0.088F;
  for (auto* s : {&p.q_strides, &p.y_strides}) {
    (*s)[1] = kDim;
    (*s)[2] = kHeads * kDim;
  }
  for (auto* s : {&p.k_strides, &p.v_strides}) {
    (*s)[1] = kCapacity * kDim;
    (*s)[2] = kDim;
  }
  auto q = bfloat16_ones(kHeads * q_len * kDim), y = q;
  std::vector<std::vector<std::byte>> caches;
  std::vector<bench::Command> commands;
  const double keys = static_cast<double>(position + q_len);
  const int64_t seen = q_len * position + q_len * (q_len + 1) / 2;  // keys, by all queries
  const double flops = 4.0 * static_cast<double>(kHeads * kDim * seen);
  for (int64_t i = 0; i < kLayers; ++i) {
    for (int j = 0; j < 2; ++j) caches.push_back(bfloat16_ones(kKvHeads * kCapacity * kDim));
    void *v = caches.back().data(), *k = caches[caches.size() - 2].data();
    commands.push_back({&isa["attention"], &p, {q.data(), k, v, &position, y.data()}, flops});
  }
  bench::measure(isa, commands, q_len == 1 ? 20 : 2, 2);
  double seconds[2] = {};
  for (const bench::Command& c : commands) {
    for (int t = 0; t < 2; ++t) seconds[t] += c.best[t] / kLayers;
  }
  const double bytes = 2.0 * 2 * kKvHeads * kDim * keys;
  for (int t = 0; t < 2; ++t) {
    std::printf("%-10s cache %4d + %-3d bf16 %d thread%s %10.2f us %7.1f GFLOP/s %6.1f GB/s\n",
                isa.name, static_cast<int>(position), static_cast<int>(q_len), t + 1, t ? "s" : " ",
                seconds[t] * 1e6, flops / seconds[t] / 1e9, bytes / seconds[t] / 1e9);
  }
}

void bench_matmul(const Isa& isa, int64_t batch, int64_t m, int64_t n, int64_t k, bool transposed,
                  double peak) {
  abi::MatmulParams p{};
  for (int64_t& b : p.batch) b = 1;
  p.batch[5] = batch;
  p.a_batch[5] = m * k;
  p.b_batch[5] = n * k;
  p.y_batch[5] = m * n;
  p.m = m;
  p.n = n;
  p.k = k;
  p.a_m = k;
  p.a_k = 1;
  p.b_k = transposed ? 1 : n;
  p.b_n = transposed ? k : 1;
  p.y_m = n;
  p.alpha = 1;
  auto a = numbers(batch * m * k), b = numbers(batch * n * k), y = numbers(batch * m * n);
  const double s = time_kernel(isa["matmul"], p, {a.data(), b.data(), y.data()});
  char label[64];
  std::snprintf(label, sizeof label, "matmul %dx[%d,%d,%d]%s", static_cast<int>(batch),
                static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
                transposed ? " b transposed" : "");
  print_row(label, isa, s, 2.0 * static_cast<double>(batch * m * n * k), peak);
}

void bench_all(const Isa& isa) {
  double peak = 0;  // clocks drift: the best of many samples
  for (int i = 0; i < 50; ++i) peak = std::max(peak, isa.peak());
  std::printf("%-8s %-34s %10s    %8.1f GFLOP/s\n", isa.name, "multiply-add peak", "", peak / 1e9);
  constexpr AttentionShape kShapes[] = {
      {"BERT-base 12x128x64", 12, 12, 128, 128, 64, false},
      {"ViT-B 12x197x64", 12, 12, 197, 197, 64, false},
      {"causal 8x1024x64", 8, 8, 1024, 1024, 64, true},
      {"grouped 32/8x512x128", 32, 8, 512, 512, 128, false},
      {"decode 12x1/1024x64", 12, 12, 1, 1024, 64, false},
      {"decode 32/8x1/4096x128", 32, 8, 1, 4096, 128, false},
  };
  for (const AttentionShape& shape : kShapes) {
    for (const int32_t dtype : {0, 1, 2}) bench_attention(isa, shape, dtype, peak);
  }
  constexpr int64_t kMatmuls[][4] = {{1, 16, 16, 16},   {12, 128, 64, 128}, {12, 197, 64, 197},
                                     {64, 49, 32, 49},  {1, 512, 512, 512}, {1, 1024, 1024, 1024},
                                     {1, 1, 1024, 1024}};
  for (const auto& [batch, m, n, k] : kMatmuls) {
    bench_matmul(isa, batch, m, n, k, false, peak);
    bench_matmul(isa, batch, m, n, k, true, peak);
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const Isa& isa : bench::isas()) {
    if (!isa.runs || (argc > 1 && std::string_view(argv[1]) != isa.name)) continue;
    if (argc < 3) bench_all(isa);
    for (const int64_t position : {127, 1023, 4095}) bench_cache(isa, 1, position);
    for (const int64_t position : {0, 1024, 4096}) bench_cache(isa, 128, position);
  }
}
