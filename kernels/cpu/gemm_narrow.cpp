// kLanes rows of y at a time are as many vectors as they have columns. What a vector's lanes read
// of x for the same term lies in two neighbouring vectors, from which a permutation takes it.
// Each result's products are added in the order of K.
#include "kernels/cpu/gemm_narrow.h"

#include "kernels/cpu/igemm.h"
#include "kernels/cpu/scratch.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::GemmParams;

constexpr bool kPermutesTwo = kLanes >= 8;
constexpr int64_t kMostColumns = 8;
constexpr int64_t kSmall = int64_t{1} << 14;  // rows not worth a second worker
constexpr int64_t kTasks = 32;

// Rows of which a vector of y has some columns.
int64_t spanned_rows(int64_t columns) {
  int64_t most = 0;
  for (int64_t v = 0; v < columns; ++v) {
    most = std::max(most, (v * kLanes + kLanes - 1) / columns - v * kLanes / columns + 1);
  }
  return most;
}

int64_t blocks_of(const Params& p) {
  return (p.m + kLanes - 1) / kLanes;
}

struct Scratch {
  float *x, *sums, *w, *bias;
  int32_t* order;
  int64_t bytes;

  Scratch(const Params& p, void* base) {
    Arena arena(base);
    x = arena.take<float>(kLanes * p.k + 2 * kLanes);
    sums = arena.take<float>(kLanes * p.n);
    w = arena.take<float>(kLanes * p.n * p.k);
    bias = arena.take<float>(kLanes * p.n);
    order = arena.take<int32_t>(kLanes * p.n);
    bytes = arena.bytes();
  }
};

// Lane i is the number `order[i]` of the two vectors at p.
[[maybe_unused]] inline Vec picked([[maybe_unused]] const float* p, [[maybe_unused]] IVec order) {
#if defined(__AVX512F__)
  return (Vec)_mm512_permutex2var_ps((__m512)load(p), (__m512i)order, (__m512)load(p + kLanes));
#elif defined(__AVX2__)
  const __m256 low = _mm256_permutevar8x32_ps((__m256)load(p), (__m256i)order);
  const __m256 high = _mm256_permutevar8x32_ps((__m256)load(p + kLanes), (__m256i)order);
  return (Vec)_mm256_blendv_ps(low, high, (__m256)(order << 28));  // bit 3: of the second
#else
  return Vec{};  // never called: no product is narrow
#endif
}

class Runner {
 public:
  Runner(const Params& p, const KernelCall& call)
      : p_(p), s_(p, call.scratch), x_(call.operands[0]), out_(make_output(p, call.operands, p.n)) {
    for (int64_t i = 0; i < kLanes * p.n; ++i) {
      const int64_t first = i / kLanes * kLanes / p.n;  // row of the vector's first lane
      s_.order[i] = static_cast<int32_t>((i / p.n - first) * p.k);
      s_.bias[i] = out_.bias ? out_.bias[i % p.n] : -0.0F;  // which changes no sum
      with_float_type(p.b_dtype, [&]<typename W>(W) {
        const W* w = static_cast<const W*>(call.operands[1]) + i % p.n;
        for (int64_t k = 0; k < p.k; ++k) {
          s_.w[(i / kLanes * p.k + k) * kLanes + i % kLanes] = to_float(w[k * kPanel]);
        }
      });
    }
    std::fill_n(s_.x + kLanes * p.k, 2 * kLanes, 0.0F);
  }

  // Rows [row, row + kLanes), as many as there are.
  void run(int64_t row) {
    const int64_t rows = std::min<int64_t>(p_.m - row, kLanes), count = rows * p_.n;
    with_float_type(p_.x_dtype, [&]<typename X>(X) {
      widen(static_cast<const X*>(x_) + row * p_.k, s_.x, rows * p_.k);
    });
    for (int64_t v = 0; v < p_.n; ++v) {
      const float* x = s_.x + v * kLanes / p_.n * p_.k;
      const float* w = s_.w + v * p_.k * kLanes;
      IVec order = load(s_.order + v * kLanes);
      Vec acc{};
      for (int64_t k = 0; k < p_.k; ++k, order += 1) {
        acc += picked(x, order) * load(w + k * kLanes);
      }
      store(s_.sums + v * kLanes, acc + load(s_.bias + v * kLanes));
    }
    if (p_.residual == kBeforeActivation) add_residual(row * p_.n, count);
    activate(out_, s_.sums, kLanes * p_.n);
    if (p_.residual == kAfterActivation) add_residual(row * p_.n, count);
    with_float_type(p_.y_dtype, [&]<typename Y>(Y) {
      Y* y = static_cast<Y*>(out_.y) + row * p_.n;
      for (int64_t i = 0; i < count; i += kLanes) {
        const Vec sum = load(s_.sums + i);
        count - i < kLanes ? store_part(y + i, sum, count - i) : store(y + i, sum);
      }
    });
  }

 private:
  void add_residual(int64_t from, int64_t count) {
    with_float_type(p_.r_dtype, [&]<typename R>(R) {
      const R* r = static_cast<const R*>(out_.residual) + from;
      for (int64_t i = 0; i < count; i += kLanes) {
        store(s_.sums + i, load(s_.sums + i) + load_some(r + i, count - i));
      }
    });
  }

  const Params& p_;
  const Scratch s_;
  const void* x_;
  const Output out_;
};

}  // namespace

bool is_narrow(const Params& p) {
  if (!kPermutesTwo || p.n < 1 || p.n > kMostColumns || p.k < 1) return false;
  if (p.ldx != p.k || p.ldy != p.n || (p.residual && p.ldr != p.n)) return false;
  return spanned_rows(p.n) * p.k <= 2 * kLanes;
}

int64_t narrow_tasks(const Params& p) {
  return std::min(blocks_of(p), p.m < kSmall ? 1 : kTasks);
}

int64_t narrow_scratch(const Params& p) {
  return Scratch(p, nullptr).bytes;
}

void run_narrow(const KernelCall& call) {
  if constexpr (kPermutesTwo) {
    const auto& p = *static_cast<const Params*>(call.params);
    Runner runner(p, call);
    const int64_t blocks = blocks_of(p), tasks = narrow_tasks(p);
    const int64_t end = Split::even(blocks, tasks, call.end);
    for (int64_t i = Split::even(blocks, tasks, call.begin); i < end; ++i) runner.run(i * kLanes);
  }
}

}  // namespace npusim::cpu::NPUSIM_ISA
