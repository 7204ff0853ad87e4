// y = softmax(scale * q·kᵀ + mask, causal)·v, block by block with a running maximum and sum per row
// (online softmax: Milakov & Gimelshein, arXiv:1805.02867), so memory does not grow with kv_len.
// How a block's weights are computed depends on its rows: attention_many.h, attention_few.h.
#include "kernels/cpu/attention_few.h"
#include "kernels/cpu/attention_many.h"
#include "kernels/cpu/distinct.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::AttentionParams;

constexpr int32_t kBool = static_cast<int32_t>(abi::DType::kBool);

template <typename T>
void shrink_sums(const AttentionRows<T>& rows, const AttentionScratch& s) {
  for (int64_t row = 0; row < rows.count; ++row) {
    float* sums = s.sums + row * s.v_columns;
    for (int64_t d = 0; d < s.v_columns; d += kLanes) {
      store(sums + d, load(sums + d) * s.shrink[row]);
    }
  }
}

// sums (+)= weights · values of keys [key, key + keys).
template <typename T>
void add_values(const AttentionRows<T>& rows, const AttentionScratch& s, Product product,
                int64_t key, int64_t keys) {
  const StridedBlock<T> values = rows.values(key, keys);
  product.b = s.v;
  product.b_k = product.c_row = s.v_columns;
  product.c = s.sums;
  product.k = keys;
  product.add = key > 0;
  bool in_place = false;
  if constexpr (__is_same(T, float)) {
    in_place = values.columns == s.v_columns;
    if (in_place) {
      product.b = values.at;
      product.b_k = values.row;
    }
  }
  if (!in_place) copy_rows(values, s.v, s.v_columns);
  if (key > 0) shrink_sums(rows, s);
  multiply(product, rows.count, s.v_columns / kLanes);
}

// A row that sees nothing is 0: `end` is 0, or its total is.
template <typename T>
void store_output(const AttentionRows<T>& rows, const AttentionScratch& s, int64_t end) {
  for (int64_t row = 0; row < rows.count; ++row) {
    T* y = rows.y + rows.offset(row, rows.p.y_strides);
    const float total = end > 0 ? s.total[row] : 0.0f;
    const float* sums = s.sums + row * s.v_columns;
    for (int64_t d = 0; d < rows.p.v_dim; d += kLanes) {
      store_lanes(y + d, total == 0 ? Vec{} : load(sums + d) * (1.0f / total), rows.p.v_dim - d);
    }
  }
}

template <template <typename> class Weights, typename T>
void attend(const AttentionRows<T>& rows, const AttentionScratch& s) {
  Weights<T> weights(rows, s);
  // The last row sees the most.
  const int64_t end = rows.seen(rows.count - 1, 0, rows.p.kv_len);
  for (int64_t key = 0; key < end; key += kBlockKeys) {
    const int64_t keys = std::min(kBlockKeys, end - key);
    weights.weigh(key, keys);
    add_values(rows, s, weights.weights(), key, keys);
  }
  store_output(rows, s, end);
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const AttentionPlan plan(p);
  const AttentionScratch s(p, plan, call.scratch);
  const int64_t end = std::min(call.end * plan.per_task, plan.total);
  with_float_type(p.dtype, [&](auto type) {
    for (int64_t i = call.begin * plan.per_task; i < end; ++i) {
      const AttentionRows<decltype(type)> rows(p, plan, call.operands, i);
      rows.count <= kFewRows ? attend<FewRows>(rows, s) : attend<ManyRows>(rows, s);
    }
  });
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
  if (!is_flag(p.has_mask) || !is_flag(p.causal)) return "a flag is neither 0 nor 1";
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

const char* check_mask(const KernelCheck& c, const Params& p) {
  const int64_t sizes[] = {p.batch, p.heads, p.q_len, p.kv_len};
  return Region().dims(sizes, p.mask_strides, 4).reads(c, 3, element_size(p.mask_dtype));
}

const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_fields(p)) return why;
  if (const char* why = operand_count(c, p.has_mask ? 5 : 4)) return why;
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
  if (const char* why = y.writes(c, p.has_mask ? 4 : 3, size)) return why;
  Digits digits;
  digits.dim(p.batch, p.y_strides[0]).dim(p.heads, p.y_strides[1]).dim(p.q_len, p.y_strides[2]);
  return digits.dim(p.v_dim, 1).distinct() ? nullptr : kCollides;
}

}  // namespace

extern const KernelEntry attention_kernel;
const KernelEntry attention_kernel = {"attention", Params::kSchema, sizeof(Params), run,
                                      check,       tasks,           scratch};

}  // namespace npusim::cpu::NPUSIM_ISA
