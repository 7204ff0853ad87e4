// paged_attention: y = softmax(cap(scale * q·kᵀ), causal)·v for rows of many requests, whose keys
// and values lie in pages.
//
// A task is a row and a key/value head: the query heads that share it, up to kFewRows at a time, go
// page by page through the keys that the row sees, as `attention` does for a token. Pages come in
// the order of positions and each is one block, so the sums of a row do not depend on what else
// the command has, on where its pages lie, or on how many rows its request has.
#include "kernels/cpu/attention_few.h"
#include "kernels/cpu/attention_sums.h"
#include "kernels/cpu/pages.h"

#ifdef NPUSIM_BASE_ISA
namespace npusim::cpu::NPUSIM_BASE_ISA {
extern const KernelEntry paged_attention_kernel;
}
#endif

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::PagedAttentionParams;

static_assert(kMostPageTokens <= kBlockKeys);

constexpr size_t kTables = 3;  // the first of the operands that say where keys lie
constexpr size_t kY = 6;

// The query heads [first, first + heads) of a row and their key/value head, as `attention` has
// them: one query, and one page's keys.
abi::AttentionParams of_heads(const Params& p, int64_t heads) {
  abi::AttentionParams one{};
  one.batch = 1;
  one.heads = heads;
  one.kv_heads = 1;
  one.q_len = 1;
  one.kv_len = p.page_tokens;
  one.head_dim = p.head_dim;
  one.v_dim = p.v_dim;
  one.q_strides[1] = p.q_strides[0];
  one.k_strides[2] = p.k_strides[2];
  one.v_strides[2] = p.v_strides[2];
  one.y_strides[1] = p.y_strides[0];
  one.window = p.window;
  one.causal = 1;
  one.dtype = p.dtype;
  one.scale = p.scale;
  one.softcap = p.softcap;
  return one;
}

// One row against the pages of its request.
template <typename T>
class PagedRow {
 public:
  PagedRow(const Params& p, const KernelCall& call, int64_t row)
      : p_(p), call_(call), pages_(p, call.operands, kTables), row_(row) {}

  // False, and reported, when the row's numbers do not fit the cache.
  bool attend(int64_t kv_head) {
    if (!pages_.read(row_, call_.failure, &at_)) return false;
    const int64_t group = p_.heads / p_.kv_heads;
    for (int64_t first = 0; first < group; first += kFewRows) {
      const int64_t heads = std::min(kFewRows, group - first);
      if (!attend(kv_head, kv_head * group + first, heads)) return false;
    }
    return true;
  }

 private:
  bool attend(int64_t kv_head, int64_t head, int64_t heads) {
    const abi::AttentionParams one = of_heads(p_, heads);
    const AttentionPlan plan(one);
    const AttentionScratch s(one, plan, call_.scratch);
    AttentionKeys in_use{0, at_.position};
    const T* q = operand(0) + head * p_.q_strides[0] + row_ * p_.q_strides[1];
    T* y = const_cast<T*>(operand(kY)) + head * p_.y_strides[0] + row_ * p_.y_strides[1];
    void* operands[] = {const_cast<T*>(q), nullptr, nullptr, y};
    AttentionRows<T> rows(one, plan, in_use, operands, 0);
    FewRows<T> weights(rows, s);
    const int64_t end = at_.request < 0 ? 0 : at_.position + 1;
    const int64_t begin = p_.window > 0 ? std::max<int64_t>(0, end - p_.window) : 0;
    const int64_t first = begin / p_.page_tokens;
    for (int64_t i = first; i * p_.page_tokens < end; ++i) {
      const int64_t page = pages_.page(at_.request, i, call_.failure);
      if (page < 0) return false;
      rows.k = operand(1) + page * p_.k_strides[0] + kv_head * p_.k_strides[1];
      rows.v = operand(2) + page * p_.v_strides[0] + kv_head * p_.v_strides[1];
      in_use.offset = at_.position - i * p_.page_tokens;  // counted from the page's first key
      in_use.used = std::min(p_.page_tokens, end - i * p_.page_tokens);
      weights.weigh(0, in_use.used, i > first);
      if (i > first) shrink_sums(rows, s);
      multiply_values(rows, s, weights.weights(), 0, in_use.used, i > first);
    }
    store_output(rows, s, begin < end);
    return true;
  }

  const T* operand(size_t i) const { return static_cast<const T*>(call_.operands[i]); }

  const Params& p_;
  const KernelCall& call_;
  const Pages<Params> pages_;
  const int64_t row_;
  typename Pages<Params>::Row at_{};
};

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
#ifdef NPUSIM_BASE_ISA
  // All that this set adds are dot products of bfloat16.
  if (p.dtype != static_cast<int32_t>(abi::DType::kBfloat16)) {
    return NPUSIM_BASE_ISA::paged_attention_kernel.run(call);
  }
#endif
  const auto attend_all = [&](auto type) {
    for (int64_t i = call.begin; i < call.end; ++i) {
      PagedRow<decltype(type)> row(p, call, i / p.kv_heads);
      if (!row.attend(i % p.kv_heads)) return;
    }
  };
#ifdef NPUSIM_BASE_ISA
  attend_all(bfloat16{});  // run() takes the other dtypes from the set below
#else
  with_float_type(p.dtype, attend_all);
#endif
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  return p.v_dim == 0 || p.heads == 0 ? 0 : p.length * p.kv_heads;
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  const abi::AttentionParams one = of_heads(p, std::min(kFewRows, p.heads / p.kv_heads));
  return AttentionScratch(one, AttentionPlan(one), nullptr).bytes;
}

const char* check_fields(const Params& p) {
  constexpr int64_t kMostColumns = 1 << 20;
  if (p.kv_heads < 1 || p.heads < 0 || p.heads % p.kv_heads != 0) {
    return "the key/value heads do not divide the heads";
  }
  if (p.head_dim < 0 || p.head_dim > kMostColumns || p.v_dim < 0 || p.v_dim > kMostColumns) {
    return "a head is negative or too large";
  }
  if (p.window < 0) return "the window is negative";
  if (!(p.softcap >= 0 && p.softcap < kInfinity)) return "the cap of the scores is out of range";
  const int64_t sizes[] = {p.length, p.heads, kBlockRows};
  return product(sizes, 3) < 0 ? "a size is negative or too large" : nullptr;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_fields(p)) return why;
  if (const char* why = operand_count(c, kY + 1)) return why;
  if (const char* why = check_pages(c, p, kTables)) return why;
  const int64_t size = element_size(p.dtype);
  const auto rows = [&](int64_t columns, const int64_t* strides) {
    return Region().dim(p.heads, strides[0]).dim(p.length, strides[1]).dim(columns, 1);
  };
  if (const char* why = rows(p.head_dim, p.q_strides).reads(c, 0, size)) return why;
  const Region k = cache_region(p, p.kv_heads, p.head_dim, p.k_strides);
  const Region v = cache_region(p, p.kv_heads, p.v_dim, p.v_strides);
  if (const char* why = k.reads(c, 1, size)) return why;
  if (const char* why = v.reads(c, 2, size)) return why;
  return rows(p.v_dim, p.y_strides).writes(c, kY, size);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({p.heads, p.length, p.table_length, p.page_tokens, p.head_dim + p.v_dim});
}

}  // namespace

extern const KernelEntry paged_attention_kernel;
const KernelEntry paged_attention_kernel = {
    "paged_attention", Params::kSchema, sizeof(Params), run, check, tasks,
    scratch,           nullptr,         nullptr,        work};

}  // namespace npusim::cpu::NPUSIM_ISA
