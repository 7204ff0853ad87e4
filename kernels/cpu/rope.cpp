// rope: rotary position embedding of up to three tensors (queries, keys, values) in one pass over
// the tokens, and the append of the results to a cache at a position read when the command runs.
// A task takes tokens, all heads of all parts: the heads of a token share its cosines and sines,
// which are converted once. y may be x's memory for a part that keeps its positions.
#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/to_rows.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::RopeParams;

constexpr int kParts = 3;
constexpr int64_t kElementsPerTask = 16384;

int position_operand(const Params& p) {
  return p.parts + 2;
}
int first_output(const Params& p) {
  return p.parts + 2 + p.has_position;
}

// Elements of all parts that belong to one token.
int64_t token_elements(const Params& p) {
  int64_t elements = 0;
  for (int i = 0; i < p.parts; ++i) elements += p.heads[i] * p.head_dim[i];
  return elements;
}
int64_t tokens_per_task(const Params& p) {
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, token_elements(p)));
}

// Neighbouring lanes change places.
template <int... I>
Vec swap_pairs(Vec x, std::integer_sequence<int, I...>) {
  return shuffle(x, x, std::integer_sequence<int, (I ^ 1)...>{});
}
Vec swap_pairs(Vec x) {
  return swap_pairs(x, std::make_integer_sequence<int, kLanes>{});
}

// Pairs (j, j + half).
template <typename T>
void rotate_halves(const T* x, const float* cos, const float* sin, int64_t half, T* y) {
  for (int64_t j = 0; j < half; j += kLanes) {
    const int64_t n = half - j;
    const Vec a = load_lanes(x + j, n), b = load_lanes(x + half + j, n);
    const Vec turned_a = a * load_lanes(cos + j, n) - b * load_lanes(sin + j, n);
    const Vec turned_b = b * load_lanes(cos + half + j, n) + a * load_lanes(sin + half + j, n);
    store_lanes(y + j, turned_a, n);
    store_lanes(y + half + j, turned_b, n);
  }
}

// Pairs (2j, 2j + 1): the partner is the neighbouring lane, subtracted in the even ones.
template <typename T>
void rotate_neighbours(const T* x, const float* cos, const float* sin, int64_t size, T* y) {
  const Vec sign = (lane_index() & 1) != 0 ? Vec{} + 1.0f : Vec{} - 1.0f;
  for (int64_t j = 0; j < size; j += kLanes) {
    const int64_t n = size - j;
    const Vec a = load_lanes(x + j, n);
    const Vec turned = a * load_lanes(cos + j, n) + swap_pairs(a) * (sign * load_lanes(sin + j, n));
    store_lanes(y + j, turned, n);
  }
}

template <typename T>
class Rope {
 public:
  Rope(const Params& p, const KernelCall& call, int64_t position) : p_(p), position_(position) {
    Arena arena(call.scratch);
    cos_ = arena.take<float>(p.rotary_dim);
    sin_ = arena.take<float>(p.rotary_dim);
    cos_rows_ = call.operands[p.parts];
    sin_rows_ = call.operands[p.parts + 1];
    for (int i = 0; i < p.parts; ++i) {
      x_[i] = static_cast<const T*>(call.operands[i]);
      y_[i] = static_cast<T*>(call.operands[first_output(p) + i]);
    }
  }

  void token(int64_t batch, int64_t t) {
    bool widened = false;
    for (int i = 0; i < p_.parts; ++i) {
      const int64_t row = t + (p_.at_position[i] ? position_ : 0);
      const T* x = x_[i] + batch * p_.x_strides[3 * i] + t * p_.x_strides[3 * i + 2];
      T* y = y_[i] + batch * p_.y_strides[3 * i] + row * p_.y_strides[3 * i + 2];
      if (p_.rotate[i] && !widened) {
        widen(cos_rows_, batch * p_.cs_strides[0] + t * p_.cs_strides[1], cos_);
        widen(sin_rows_, batch * p_.cs_strides[2] + t * p_.cs_strides[3], sin_);
        widened = true;
      }
      for (int64_t h = 0; h < p_.heads[i]; ++h) {
        head(i, x + h * p_.x_strides[3 * i + 1], y + h * p_.y_strides[3 * i + 1]);
      }
    }
  }

 private:
  void widen(const void* from, int64_t at, float* to) {
    with_float_type(p_.cs_dtype, [&](auto type) {
      decode_run(static_cast<const decltype(type)*>(from) + at, 1, p_.rotary_dim, to);
    });
  }

  void head(int part, const T* x, T* y) {
    int64_t done = 0;
    if (p_.rotate[part]) {
      done = p_.rotary_dim;
      p_.interleaved ? rotate_neighbours(x, cos_, sin_, done, y)
                     : rotate_halves(x, cos_, sin_, done / 2, y);
    }
    if (x == y) return;
    for (int64_t d = done; d < p_.head_dim[part]; ++d) y[d] = x[d];
  }

  const Params& p_;
  const int64_t position_;
  float *cos_, *sin_;  // of the current token
  const void *cos_rows_, *sin_rows_;
  const T* x_[kParts];
  T* y_[kParts];
};

// Whether all rows at `position` lie inside their caches; reports the first that does not.
bool fits(const Params& p, int64_t position, Failure* failure) {
  for (int i = 0; i < p.parts; ++i) {
    if (!p.at_position[i]) continue;  // its limit may be any number
    const int64_t last = p.limit[i] - p.length;
    if (position < 0 || position > last) {
      failure->report("position outside the cache", position, last);
      return false;
    }
  }
  return true;
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  int64_t position = 0;
  if (p.has_position) std::memcpy(&position, call.operands[position_operand(p)], sizeof position);
  if (!fits(p, position, call.failure)) return;
  const int64_t each = tokens_per_task(p);
  const int64_t end = std::min(call.end * each, p.batch * p.length);
  with_float_type(p.dtype, [&](auto type) {
    Rope<decltype(type)> rope(p, call, position);
    for (int64_t i = call.begin * each; i < end; ++i) rope.token(i / p.length, i % p.length);
  });
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  const int64_t each = tokens_per_task(p);
  return token_elements(p) == 0 ? 0 : (p.batch * p.length + each - 1) / each;
}

int64_t scratch(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  Arena arena(nullptr);
  arena.take<float>(p.rotary_dim);
  arena.take<float>(p.rotary_dim);
  return arena.bytes();
}

int outputs(const void* params) {
  return static_cast<const Params*>(params)->parts;
}

const char* check_fields(const Params& p) {
  if (p.parts < 1 || p.parts > kParts) return "it does not have one to three parts";
  if (!is_flag(p.has_position) || !is_flag(p.interleaved)) return "a flag is neither 0 nor 1";
  if (!is_float(p.dtype) || !is_float(p.cs_dtype)) {
    return "a dtype is not a float of 32 or 16 bits";
  }
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0) return "the rotary dimension is not even";
  int64_t columns = 0;  // of a token, over all parts: what the tasks are cut by
  for (int i = 0; i < p.parts; ++i) {
    if (!is_flag(p.rotate[i]) || !is_flag(p.at_position[i])) return "a flag is neither 0 nor 1";
    if (p.at_position[i] && !p.has_position) return "there is no position to append at";
    if (p.at_position[i] && p.limit[i] < p.length) return "a cache is shorter than what it takes";
    if (p.rotate[i] && p.rotary_dim > p.head_dim[i]) return "a head is shorter than its rotation";
    const int64_t sizes[] = {p.batch, p.length, p.heads[i], p.head_dim[i]};
    const int64_t row[] = {p.heads[i], p.head_dim[i]};
    if (product(sizes, 4) < 0 || __builtin_add_overflow(columns, product(row, 2), &columns)) {
      return "a size is negative or too large";
    }
  }
  return nullptr;
}

Region walk(const Params& p, int i, int64_t rows, const int64_t* strides) {
  return Region()
      .dim(p.batch, strides[3 * i])
      .dim(p.heads[i], strides[3 * i + 1])
      .dim(rows, strides[3 * i + 2])
      .dim(p.head_dim[i], 1);
}

const char* check_part(const KernelCheck& c, const Params& p, int i) {
  const int64_t size = element_size(p.dtype);
  const int64_t rows = p.at_position[i] ? p.limit[i] : p.length;
  const auto x = static_cast<size_t>(i), y = static_cast<size_t>(first_output(p) + i);
  if (const char* why = walk(p, i, p.length, p.x_strides).reads(c, x, size)) return why;
  return walk(p, i, rows, p.y_strides).writes(c, y, size);
}

const char* check_angles(const KernelCheck& c, const Params& p) {
  const int64_t size = element_size(p.cs_dtype);
  for (int i = 0; i < 2; ++i) {
    const int64_t* strides = p.cs_strides + 2 * static_cast<ptrdiff_t>(i);
    const Region rows =
        Region().dim(p.batch, strides[0]).dim(p.length, strides[1]).dim(p.rotary_dim, 1);
    if (const char* why = rows.reads(c, static_cast<size_t>(p.parts + i), size)) return why;
  }
  return nullptr;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = check_fields(p)) return why;
  const auto operands = static_cast<size_t>(first_output(p) + p.parts);
  if (const char* why = operand_count(c, operands)) return why;
  bool rotates = false;
  for (int i = 0; i < p.parts; ++i) {
    if (const char* why = check_part(c, p, i)) return why;
    rotates |= p.rotate[i] != 0;
  }
  if (rotates) {
    if (const char* why = check_angles(c, p)) return why;
  } else if (p.rotary_dim != 0) {
    return "no part takes the rotation";
  }
  if (!p.has_position) return nullptr;
  return Region().dim(1, 1).reads(c, static_cast<size_t>(position_operand(p)), 8);
}

int in_place(const void* params, int read) {
  const auto& p = *static_cast<const Params*>(params);
  return read < p.parts && !p.at_position[read] ? read : -1;
}

}  // namespace

extern const KernelEntry rope_kernel;
const KernelEntry rope_kernel = {"rope", Params::kSchema, sizeof(Params), run,     check,
                                 tasks,  scratch,         outputs,        in_place};

}  // namespace npusim::cpu::NPUSIM_ISA
