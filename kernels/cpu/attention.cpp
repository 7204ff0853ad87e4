// y = softmax(cap(scale * q·kᵀ) + mask, causal)·v, block by block with a running maximum and sum
// per row (online softmax: Milakov & Gimelshein, arXiv:1805.02867), so memory does not grow with
// kv_len, and keys that no row of a block sees (a cache's free rows, what a window has passed) are
// not read.
// How a block's weights are computed depends on its rows: attention_many.h, attention_few.h.
#include "kernels/cpu/attention_few.h"
#include "kernels/cpu/attention_many.h"
#include "kernels/cpu/attention_sums.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
extern const KernelEntry attention_kernel;
}
#endif

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::AttentionParams;

constexpr int32_t kBool = static_cast<int32_t>(abi::DType::kBool);

template <template <typename> class Weights, typename T>
void attend(const AttentionRows<T>& rows, const AttentionScratch& s) {
  Weights<T> weights(rows, s);
  // The last row sees farthest, the first one back the most.
  const int64_t end = rows.seen(rows.count - 1, 0, rows.in_use.used);
  const int64_t begin = rows.passed(0, 0, end);
  for (int64_t key = begin; key < end; key += kBlockKeys) {
    const int64_t keys = std::min(kBlockKeys, end - key);
    weights.weigh(key, keys, key > begin);
    if (key > begin) shrink_sums(rows, s);
    multiply_values(rows, s, weights.weights(), key, keys, key > begin);
  }
  store_output(rows, s, begin < end);
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
#ifdef NPUSIM_BASE_ISA
  // All that this set adds are dot products of bfloat16; plan and scratch are the same.
  if (p.dtype != static_cast<int32_t>(abi::DType::kBfloat16)) {
    return NPUSIM_BASE_ISA::attention_kernel.run(call);
  }
#endif
  const AttentionPlan plan(p);
  const AttentionScratch s(p, plan, call.scratch);
  const int64_t end = std::min(call.end * plan.per_task, plan.total);
  AttentionKeys in_use;
  if (!in_use.read(p, call.operands, call.failure)) return;
  const auto attend_all = [&](auto type) {
    for (int64_t i = call.begin * plan.per_task; i < end; ++i) {
      const AttentionRows<decltype(type)> rows(p, plan, in_use, call.operands, i);
      rows.count <= kFewRows ? attend<FewRows>(rows, s) : attend<ManyRows>(rows, s);
    }
  };
#ifdef NPUSIM_BASE_ISA
  attend_all(bfloat16{});  // run() takes the other dtypes from the set below
#else
  with_float_type(p.dtype, attend_all);
#endif
}

int64_t tasks(const void* params, int64_t) {
  return AttentionPlan(*static_cast<const Params*>(params)).tasks();
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return AttentionScratch(p, AttentionPlan(p), nullptr).bytes;
}

const char* check_fields(const Params& p) {
  constexpr int64_t kMostColumns = 1 << 20;
  constexpr int64_t kMostOffset = INT64_MAX / 4;
  if (!is_flag(p.has_mask) || !is_flag(p.causal) || !is_flag(p.has_position)) {
    return "a flag is neither 0 nor 1";
  }
  if (!is_float(p.dtype)) return "the dtype is not a float of 32 or 16 bits";
  if (p.has_mask && p.mask_dtype != kBool && !is_float(p.mask_dtype)) {
    return "the mask is neither bool nor float";
  }
  if (p.kv_heads < 1 || p.heads < 0 || p.heads % p.kv_heads != 0) {
    return "the key/value heads do not divide the heads";
  }
  if (p.head_dim > kMostColumns || p.v_dim > kMostColumns) return "a head is too large";
  if (p.causal_offset > kMostOffset || p.causal_offset < -kMostOffset) {
    return "the causal offset is out of range";
  }
  if (p.window < 0 || p.window > kMostOffset) return "the window is out of range";
  if (p.window > 0 && !p.causal) return "a window looks back from a causal query";
  if (!(p.softcap >= 0 && p.softcap < kInfinity)) return "the cap of the scores is out of range";
  if (p.has_position && p.q_len > p.kv_len) return "the queries do not fit the cache";
  const int64_t sizes[] = {p.batch, p.heads, p.q_len, kBlockRows};
  return product(sizes, 4) < 0 ? "a size is negative or too large" : nullptr;
}

Region walk(const Params& p, int64_t heads, int64_t length, int64_t columns,
            const int64_t* strides) {
  return Region()
      .dim(p.batch, strides[0])
      .dim(heads, strides[1])
      .dim(length, strides[2])
      .dim(columns, 1);
}

size_t y_operand(const Params& p) {
  return static_cast<size_t>(3 + p.has_mask + p.has_position);
}

const char* check_mask(const KernelCheck& c, const Params& p) {
  const int64_t sizes[] = {p.batch, p.heads, p.q_len, p.kv_len};
  return Region().dims(sizes, p.mask_strides, 4).reads(c, 3, element_size(p.mask_dtype));
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_fields(p)) return why;
  if (const char* why = operand_count(c, y_operand(p) + 1)) return why;
  const int64_t size = element_size(p.dtype);
  const Region q = walk(p, p.heads, p.q_len, p.head_dim, p.q_strides);
  const Region k = walk(p, p.kv_heads, p.kv_len, p.head_dim, p.k_strides);
  const Region v = walk(p, p.kv_heads, p.kv_len, p.v_dim, p.v_strides);
  const Region y = walk(p, p.heads, p.q_len, p.v_dim, p.y_strides);
  if (const char* why = q.reads(c, 0, size)) return why;
  if (const char* why = k.reads(c, 1, size)) return why;
  if (const char* why = v.reads(c, 2, size)) return why;
  if (p.has_mask) {
    if (const char* why = check_mask(c, p)) return why;
  }
  if (p.has_position) {
    if (const char* why = Region().dim(1, 1).reads(c, y_operand(p) - 1, 8)) return why;
  }
  return y.writes(c, y_operand(p), size);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({p.batch, p.heads, p.q_len, p.kv_len, p.head_dim + p.v_dim});
}

}  // namespace

extern const KernelEntry attention_kernel;
const KernelEntry attention_kernel = {"attention", Params::kSchema, sizeof(Params), run,     check,
                                      tasks,       scratch,         nullptr,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
