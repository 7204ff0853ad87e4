// y = softmax(scale * q·kᵀ + mask, causal)·v, blockwise with a running maximum and sum per row
// (online softmax: Milakov & Gimelshein, arXiv:1805.02867), so memory does not grow with kv_len.
//
// The one non-obvious decision: scores are computed transposed, S[key][row] = k·qᵀ. Lanes are then
// query rows: softmax runs down the columns without horizontal steps, k and v are read where they
// lie, and only q, the small operand, is transposed. Few rows (decoding one token) would leave
// lanes idle; their scores are dot products along the head dimension instead.
//
// All query heads that share a key/value head are rows of the same block: each k and v is read
// once for the whole group.
#include <algorithm>

#include "kernels/cpu/check.h"
#include "kernels/cpu/distinct.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/storage.h"
#include "kernels/cpu/to_rows.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::AttentionParams;

constexpr int64_t kBlockRows = 64;  // query rows of a block: a tile's full width of S
constexpr int64_t kBlockKeys = 128;
constexpr int64_t kFewRows = 4;
constexpr int32_t kBool = static_cast<int32_t>(abi::DType::kBool);

// How a command is cut: rows of one (batch, key/value head) into blocks, and blocks into tasks.
struct Plan {
  int64_t group;       // query heads that share a key/value head
  int64_t rows;        // of one key/value head: queries x group
  int64_t blocks;      // row blocks of one key/value head
  int64_t block_rows;  // of the largest block, a multiple of kLanes
  int64_t total;       // blocks of the command
  int64_t per_task;    // blocks a task takes
  int64_t v_columns;   // v_dim to the next multiple of kLanes

  explicit Plan(const Params& p) {
    constexpr double kTaskWork = 1 << 17;  // multiply-adds worth handing to another worker
    group = p.heads / p.kv_heads;
    rows = group * p.q_len;
    const int64_t vectors = (rows + kLanes - 1) / kLanes;
    blocks = (rows + kBlockRows - 1) / kBlockRows;
    block_rows = blocks ? (vectors + blocks - 1) / blocks * kLanes : 0;
    total = p.v_dim == 0 ? 0 : p.batch * p.kv_heads * blocks;
    const double work = static_cast<double>(std::min(block_rows, rows)) *
                        static_cast<double>(p.kv_len) * static_cast<double>(p.head_dim + p.v_dim);
    per_task = std::max<int64_t>(1, static_cast<int64_t>(kTaskWork / (work + 1)));
    v_columns = round_up(p.v_dim, kLanes);
  }
  int64_t tasks() const { return (total + per_task - 1) / per_task; }
  // Row where a block begins: blocks differ by at most one vector.
  int64_t begin(int64_t block) const {
    const int64_t vectors = (rows + kLanes - 1) / kLanes;
    const int64_t first = block * (vectors / blocks) + std::min(block, vectors % blocks);
    return std::min(first * kLanes, rows);
  }
};

struct Scratch {
  float* q;                // [head_dim][block_rows], or [rows][head_dim to kLanes] for few rows
  float* scores;           // [kBlockKeys][block_rows]
  float* sums;             // [block_rows][v_columns]: the output before division
  float *k, *v;            // a block widened to float, v's columns padded to v_columns
  float *maximum, *total;  // of each row so far
  int32_t* limit;          // causal: keys of this block a row sees
  int64_t bytes;

  Scratch(const Params& p, const Plan& plan, void* base) {
    Arena arena(base);
    const int64_t padded = round_up(p.head_dim, kLanes);
    q = arena.take<float>(padded * std::max(plan.block_rows, kFewRows));
    scores = arena.take<float>(kBlockKeys * plan.block_rows);
    sums = arena.take<float>(plan.block_rows * plan.v_columns);
    k = arena.take<float>(p.dtype == 0 ? 0 : kBlockKeys * p.head_dim);
    v = arena.take<float>(p.dtype == 0 && p.v_dim == plan.v_columns ? 0
                                                                    : kBlockKeys * plan.v_columns);
    maximum = arena.take<float>(plan.block_rows);
    total = arena.take<float>(plan.block_rows);
    limit = arena.take<int32_t>(plan.block_rows);
    bytes = arena.bytes();
  }
};

// One block of query rows against one key/value head. T: storage.
template <typename T>
class Block {
 public:
  Block(const KernelCall& call, const Params& p, const Plan& plan, int64_t index)
      : p_(p), plan_(plan), s_(p, plan, call.scratch) {
    const int64_t head = index / plan.blocks, block = index % plan.blocks;
    const int64_t batch = head / p.kv_heads;
    kv_head_ = head % p.kv_heads;
    first_ = plan.begin(block);
    rows_ = plan.begin(block + 1) - first_;
    lanes_ = round_up(rows_, kLanes);
    q_ = static_cast<const T*>(call.operands[0]) + batch * p.q_strides[0];
    k_ = static_cast<const T*>(call.operands[1]) + batch * p.k_strides[0] +
         kv_head_ * p.k_strides[1];
    v_ = static_cast<const T*>(call.operands[2]) + batch * p.v_strides[0] +
         kv_head_ * p.v_strides[1];
    mask_ = p.has_mask ? static_cast<const char*>(call.operands[3]) +
                             batch * p.mask_strides[0] * element_size(p.mask_dtype)
                       : nullptr;
    y_ = static_cast<T*>(call.operands[3 + p.has_mask]) + batch * p.y_strides[0];
  }

  void run() {
    const bool few = rows_ <= kFewRows;
    few ? load_few_queries() : load_queries();
    const int64_t end = visible_keys();
    for (int64_t key = 0; key < end; key += kBlockKeys) {
      const int64_t keys = std::min(kBlockKeys, end - key);
      few ? score_few(key, keys) : score(key, keys);
      if (p_.has_mask) mask(key, keys);
      if (p_.causal) limit(key, keys);
      soften(key, keys);
      accumulate(key, keys);
    }
    end > 0 ? store_rows() : store_zeros();
  }

 private:
  int64_t query(int64_t row) const { return (first_ + row) / plan_.group; }
  int64_t head(int64_t row) const { return kv_head_ * plan_.group + (first_ + row) % plan_.group; }
  const T* q_row(int64_t row) const {
    return q_ + head(row) * p_.q_strides[1] + query(row) * p_.q_strides[2];
  }
  int64_t mask_row(int64_t row) const {
    return head(row) * p_.mask_strides[1] + query(row) * p_.mask_strides[2];
  }

  // Keys that the last row sees; the others see no more.
  int64_t visible_keys() const {
    if (!p_.causal) return p_.kv_len;
    return std::clamp<int64_t>(query(rows_ - 1) + p_.causal_offset + 1, 0, p_.kv_len);
  }

  void load_queries() {
    for (int64_t row = 0; row < lanes_; row += kLanes) {
      const T* from[kLanes];
      const int64_t count = std::min<int64_t>(kLanes, rows_ - row);
      for (int64_t i = 0; i < count; ++i) from[i] = q_row(row + i);
      for (int64_t d = 0; d < p_.head_dim; d += kLanes) {
        const int64_t depth = std::min<int64_t>(kLanes, p_.head_dim - d);
        Vec square[kLanes] = {};
        for (int64_t i = 0; i < count; ++i) square[i] = load_lanes(from[i] + d, depth) * p_.scale;
        transpose(square);
        for (int64_t i = 0; i < depth; ++i) store(s_.q + (d + i) * lanes_ + row, square[i]);
      }
    }
  }
  void load_few_queries() {
    const int64_t padded = round_up(p_.head_dim, kLanes);
    for (int64_t row = 0; row < rows_; ++row) {
      for (int64_t d = 0; d < p_.head_dim; d += kLanes) {
        store(s_.q + row * padded + d, load_lanes(q_row(row) + d, p_.head_dim - d) * p_.scale);
      }
    }
  }

  void score(int64_t key, int64_t keys) {
    Product product{nullptr,   p_.k_strides[2], 1,           s_.q, lanes_,
                    s_.scores, lanes_,          p_.head_dim, false};
    if constexpr (std::is_same_v<T, float>) {
      product.a = k_ + key * p_.k_strides[2];
    } else {
      widen(k_ + key * p_.k_strides[2], p_.k_strides[2], keys, p_.head_dim, s_.k, p_.head_dim);
      product.a = s_.k;
      product.a_row = p_.head_dim;
    }
    multiply(product, keys, lanes_ / kLanes);
  }
  void score_few(int64_t key, int64_t keys) {
    switch (rows_) {
      case 1:
        return dot<1>(key, keys);
      case 2:
        return dot<2>(key, keys);
      case 3:
        return dot<3>(key, keys);
      default:
        return dot<kFewRows>(key, keys);
    }
  }
  template <int R>
  void dot(int64_t key, int64_t keys) {
    const int64_t padded = round_up(p_.head_dim, kLanes);
    for (int64_t j = 0; j < keys; ++j) {
      const T* k = k_ + (key + j) * p_.k_strides[2];
      Vec products[R] = {};
      for (int64_t d = 0; d < p_.head_dim; d += kLanes) {
        const Vec x = load_lanes(k + d, p_.head_dim - d);
        for (int r = 0; r < R; ++r) products[r] += x * load(s_.q + r * padded + d);
      }
      Vec scores{};
      for (int r = 0; r < R; ++r) scores[r] = sum(products[r]);
      store(s_.scores + j * lanes_, scores);
    }
  }

  // Adds the mask: a bool one as 0 or -infinity.
  void mask(int64_t key, int64_t keys) {
    if (p_.mask_dtype == kBool) return add_mask(reinterpret_cast<const Truth*>(mask_), key, keys);
    with_float_type(p_.mask_dtype, [&](auto type) {
      add_mask(reinterpret_cast<const decltype(type)*>(mask_), key, keys);
    });
  }
  template <typename M>
  void add_mask(const M* mask, int64_t key, int64_t keys) {
    const int64_t step = p_.mask_strides[3];
    const bool shared =
        (p_.mask_strides[2] == 0 || p_.q_len == 1) && (p_.mask_strides[1] == 0 || plan_.group == 1);
    if (shared) return add_shared_mask(mask + mask_row(0) + key * step, keys);
    if (step == 1) return add_mask_squares(mask, key, keys);
    for (int64_t row = 0; row < rows_; ++row) {
      const M* at = mask + mask_row(row);
      for (int64_t j = 0; j < keys; ++j) {
        s_.scores[j * lanes_ + row] += mask_value(at[(key + j) * step]);
      }
    }
  }
  template <typename M>
  void add_shared_mask(const M* mask, int64_t keys) {
    for (int64_t j = 0; j < keys; ++j) {
      const float value = mask_value(mask[j * p_.mask_strides[3]]);
      if (value == 0) continue;
      float* scores = s_.scores + j * lanes_;
      for (int64_t row = 0; row < lanes_; row += kLanes)
        store(scores + row, load(scores + row) + value);
    }
  }
  template <typename M>
  void add_mask_squares(const M* mask, int64_t key, int64_t keys) {
    for (int64_t row = 0; row < lanes_; row += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, rows_ - row);
      for (int64_t j = 0; j < keys; j += kLanes) {
        const int64_t depth = std::min<int64_t>(kLanes, keys - j);
        Vec square[kLanes] = {};
        for (int64_t i = 0; i < count; ++i) {
          square[i] = mask_lanes(mask + mask_row(row + i) + key + j, depth);
        }
        transpose(square);
        float* scores = s_.scores + j * lanes_ + row;
        for (int64_t i = 0; i < depth; ++i) {
          store(scores + i * lanes_, load(scores + i * lanes_) + square[i]);
        }
      }
    }
  }
  struct Truth {
    uint8_t byte;
  };
  static float mask_value(Truth x) { return x.byte ? 0.0f : -kInfinity; }
  template <typename M>
  static float mask_value(M x) {
    return to_float(x);
  }
  static Vec mask_lanes(const Truth* x, int64_t n) {
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = mask_value(x[i]);
    return load(lanes);
  }
  template <typename M>
  static Vec mask_lanes(const M* x, int64_t n) {
    return load_lanes(x, n);
  }

  // Causal: hides the keys beyond each row's last.
  void limit(int64_t key, int64_t keys) {
    if (query(0) + p_.causal_offset + 1 >= key + keys) return;
    for (int64_t row = 0; row < lanes_; ++row) {
      const int64_t seen = query(std::min(row, rows_ - 1)) + p_.causal_offset + 1 - key;
      s_.limit[row] = static_cast<int32_t>(std::clamp<int64_t>(seen, 0, keys));
    }
    for (int64_t j = 0; j < keys; ++j) {
      float* scores = s_.scores + j * lanes_;
      for (int64_t row = 0; row < lanes_; row += kLanes) {
        const IVec seen = *reinterpret_cast<const IVec*>(s_.limit + row);
        store(scores + row,
              seen > static_cast<int32_t>(j) ? load(scores + row) : Vec{} - kInfinity);
      }
    }
  }

  // Scores become weights relative to the row's largest score so far; what was summed relative to
  // a smaller one shrinks accordingly.
  void soften(int64_t key, int64_t keys) {
    int64_t row = 0;
    for (; row + 4 * kLanes <= lanes_; row += 4 * kLanes) soften_columns<4>(key, keys, row);
    for (; row < lanes_; row += kLanes) soften_columns<1>(key, keys, row);
    if (key == 0) return;
    for (row = 0; row < rows_; ++row) {
      float* sums = s_.sums + row * plan_.v_columns;
      for (int64_t d = 0; d < plan_.v_columns; d += kLanes) {
        store(sums + d, load(sums + d) * shrink_[row]);
      }
    }
  }
  template <int V>
  void soften_columns(int64_t key, int64_t keys, int64_t row) {
    float* scores = s_.scores + row;
    Vec top[V], before[V], total[V] = {};
    for (int v = 0; v < V; ++v) {
      before[v] = key ? load(s_.maximum + row + v * kLanes) : Vec{} - kInfinity;
      top[v] = before[v];
    }
    for (int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < V; ++v) {
        const Vec x = load(scores + j * lanes_ + v * kLanes);
        top[v] = x > top[v] ? x : top[v];
      }
    }
    Vec base[V];  // a row that has seen nothing yet has no maximum to subtract
    for (int v = 0; v < V; ++v) base[v] = top[v] == -kInfinity ? Vec{} : top[v];
    for (int64_t j = 0; j < keys; ++j) {
      for (int v = 0; v < V; ++v) {
        float* at = scores + j * lanes_ + v * kLanes;
        const Vec weight = exp_of_nonpositive(load(at) - base[v]);
        total[v] += weight;
        store(at, weight);
      }
    }
    for (int v = 0; v < V; ++v) {
      const int64_t at = row + v * kLanes;
      const Vec shrink = exp_of_nonpositive(before[v] - base[v]);
      store(shrink_ + at, shrink);
      store(s_.maximum + at, top[v]);
      store(s_.total + at, (key ? load(s_.total + at) * shrink : Vec{}) + total[v]);
    }
  }
  // exp where its result cannot overflow; results below the normal floats are 0.
  static Vec exp_of_nonpositive(Vec x) {
    constexpr float kLeast = -87.0f;
    const auto [n, r] = reduce_exp(x < kLeast ? Vec{} + kLeast : x);
    const Vec p =
        polynomial(r, 0.49999994f, 0.166665152f, 0.041668456f, 0.00836941879f, 0.00138131448f);
    return x < kLeast ? Vec{} : ((r * r * p + r) + 1.0f) * power_of_two(n);
  }

  void accumulate(int64_t key, int64_t keys) {
    const T* v = v_ + key * p_.v_strides[2];
    Product product{s_.scores,       1,    lanes_, s_.v, plan_.v_columns, s_.sums,
                    plan_.v_columns, keys, key > 0};
    if (in_place()) {
      if constexpr (std::is_same_v<T, float>) product.b = v;
      product.b_k = p_.v_strides[2];
    } else {
      widen(v, p_.v_strides[2], keys, p_.v_dim, s_.v, plan_.v_columns);
    }
    multiply(product, rows_, plan_.v_columns / kLanes);
  }
  bool in_place() const { return std::is_same_v<T, float> && p_.v_dim == plan_.v_columns; }

  // Rows of T as rows of float, padded with zeros to whole vectors where `to_row` has the room.
  static void widen(const T* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                    int64_t to_row) {
    for (int64_t r = 0; r < rows; ++r, from += from_row, to += to_row) {
      for (int64_t c = 0; c < columns; c += kLanes) {
        const int64_t n = std::min<int64_t>(kLanes, columns - c);
        store_lanes(to + c, load_lanes(from + c, n), std::min<int64_t>(kLanes, to_row - c));
      }
    }
  }

  void store_rows() {
    for (int64_t row = 0; row < rows_; ++row) {
      const float total = s_.total[row];
      const float inverse = total == 0 ? 0.0f : 1.0f / total;
      const float* sums = s_.sums + row * plan_.v_columns;
      store_row(row, [=](int64_t d) { return load(sums + d) * inverse; });
    }
  }
  void store_zeros() {
    for (int64_t row = 0; row < rows_; ++row) store_row(row, [](int64_t) { return Vec{}; });
  }
  template <typename F>
  void store_row(int64_t row, F&& value) {
    T* y = y_ + head(row) * p_.y_strides[1] + query(row) * p_.y_strides[2];
    for (int64_t d = 0; d < p_.v_dim; d += kLanes) store_lanes(y + d, value(d), p_.v_dim - d);
  }

  const Params& p_;
  const Plan& plan_;
  const Scratch s_;
  int64_t kv_head_, first_, rows_, lanes_;  // lanes_: rows_ to the next multiple of kLanes
  const T *q_, *k_, *v_;
  const char* mask_;
  T* y_;
  alignas(64) float shrink_[kBlockRows];
};

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  const Plan plan(p);
  const int64_t end = std::min(call.end * plan.per_task, plan.total);
  with_float_type(p.dtype, [&](auto type) {
    for (int64_t i = call.begin * plan.per_task; i < end; ++i) {
      Block<decltype(type)>(call, p, plan, i).run();
    }
  });
}

int64_t tasks(const void* params, int64_t) {
  return Plan(*static_cast<const Params*>(params)).tasks();
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return Scratch(p, Plan(p), nullptr).bytes;
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
