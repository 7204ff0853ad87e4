// The k first of a stable sort along the middle of a dense [outer, size, inner]: sort, argsort and
// topk. Elements become unsigned keys whose order is the one asked for (NaN largest, -0 equal to 0,
// inverted when descending); a key with its position is unique, so every method is stable. Few
// elements of many are selected with a heap, O(n log k); else all are merge-sorted.
#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::SortParams;

constexpr int64_t kTaskElements = 4096;

struct Item {
  uint64_t key;
  int64_t index;
};
bool before(const Item& a, const Item& b) {
  return a.key < b.key || (a.key == b.key && a.index < b.index);
}

uint64_t key_of(int64_t x) {
  return static_cast<uint64_t>(x) ^ (uint64_t{1} << 63);
}
// Positive numbers order as their bits do, negative ones backwards.
uint64_t key_of(double x) {
  if (x != x) return ~uint64_t{0};
  x = x == 0 ? 0 : x;
  int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return key_of(bits < 0 ? bits ^ INT64_MAX : bits);
}

// The type a storage type is compared in: all floats are doubles, all integers int64.
template <typename T>
constexpr bool is_integer() {
  return __is_same(T, int64_t) || __is_same(T, int32_t) || __is_same(T, int16_t) ||
         __is_same(T, int8_t) || __is_same(T, uint8_t) || __is_same(T, boolean);
}
template <bool kInteger>
struct Comparable {
  using type = double;
};
template <>
struct Comparable<true> {
  using type = int64_t;
};
template <typename T>
using KeyClass = typename Comparable<is_integer<T>()>::type;

// What works on keys is not inlined: it is the same code for all dtypes.

// ---- selection: a heap of the first k so far, the last of them on top

[[gnu::noinline]] void sift_down(Item* heap, int64_t n, int64_t at) {
  const Item item = heap[at];
  for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
    if (child + 1 < n && before(heap[child], heap[child + 1])) ++child;
    if (!before(item, heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = item;
}

[[gnu::noinline]] void heap_sort(Item* heap, int64_t n) {
  for (int64_t last = n - 1; last > 0; --last) {
    const Item top = heap[0];
    heap[0] = heap[last];
    heap[last] = top;
    sift_down(heap, last, 0);
  }
}

// Leaves the k first of next(0) … next(n-1) in heap, in order.
template <typename F>
void select(Item* heap, int64_t k, int64_t n, F next) {
  for (int64_t i = 0; i < k; ++i) heap[i] = next(i);
  for (int64_t i = k / 2; i-- > 0;) sift_down(heap, k, i);
  for (int64_t i = k; i < n; ++i) {
    const Item item = next(i);
    if (!before(item, heap[0])) continue;
    heap[0] = item;
    sift_down(heap, k, 0);
  }
  heap_sort(heap, k);
}

// ---- merge sort, bottom up from runs sorted by insertion

constexpr int64_t kRun = 16;

void insertion_sort(Item* items, int64_t n) {
  for (int64_t i = 1; i < n; ++i) {
    const Item item = items[i];
    int64_t at = i;
    for (; at > 0 && before(item, items[at - 1]); --at) items[at] = items[at - 1];
    items[at] = item;
  }
}

void merge(const Item* a, int64_t n_a, const Item* b, int64_t n_b, Item* out) {
  const Item *a_end = a + n_a, *b_end = b + n_b;
  while (a < a_end && b < b_end) *out++ = before(*b, *a) ? *b++ : *a++;
  while (a < a_end) *out++ = *a++;
  while (b < b_end) *out++ = *b++;
}

// Sorts items, using as much room again; returns where the result is.
[[gnu::noinline]] Item* merge_sort(Item* items, Item* room, int64_t n) {
  for (int64_t i = 0; i < n; i += kRun) insertion_sort(items + i, n - i < kRun ? n - i : kRun);
  for (int64_t width = kRun; width < n; width *= 2) {
    for (int64_t i = 0; i < n; i += 2 * width) {
      const int64_t left = n - i < width ? n - i : width;
      const int64_t right = n - i - left < width ? n - i - left : width;
      merge(items + i, left, items + i + left, right, room + i);
    }
    Item* const sorted = room;
    room = items;
    items = sorted;
  }
  return items;
}

// A heap pays off while k is small against the elements it sees.
bool selects(const Params& p) {
  return p.k <= p.size / 8;
}

template <typename T>
void sort_lane(const KernelCall& call, const T* x, T* values, int64_t* indices) {
  const Params& p = *static_cast<const Params*>(call.params);
  const uint64_t flip = p.descending ? ~uint64_t{0} : 0;
  const auto item = [&](int64_t i) {
    return Item{key_of(decode<KeyClass<T>>(x[i * p.inner])) ^ flip, i};
  };
  Item* items = static_cast<Item*>(call.scratch);
  if (selects(p)) {
    select(items, p.k, p.size, item);
  } else {
    for (int64_t i = 0; i < p.size; ++i) items[i] = item(i);
    items = merge_sort(items, items + p.size, p.size);
  }
  for (int64_t i = 0; i < p.k; ++i) {
    values[i * p.inner] = x[items[i].index * p.inner];
    indices[i * p.inner] = items[i].index;
  }
}

int64_t lanes_per_task(const Params& p) {
  return p.size < kTaskElements ? kTaskElements / p.size : 1;
}

template <typename T>
void sort_lanes(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  const int64_t each = lanes_per_task(p), lanes = p.outer * p.inner;
  for (int64_t lane = call.begin * each; lane < call.end * each && lane < lanes; ++lane) {
    const int64_t outer = lane / p.inner, column = lane % p.inner;
    const int64_t out = outer * p.k * p.inner + column;
    sort_lane(call, static_cast<const T*>(call.operands[0]) + outer * p.size * p.inner + column,
              static_cast<T*>(call.operands[1]) + out,
              static_cast<int64_t*>(call.operands[2]) + out);
  }
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  if (p.k == 0) return;
  with_storage(p.dtype, [&](auto type) { sort_lanes<decltype(type)>(call); });
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, 3)) return why;
  if (element_size(p.dtype) == 0) return "a dtype does not exist";
  if (!is_flag(p.descending)) return "a flag is not 0 or 1";
  if (p.k < 0 || p.k > p.size) return "k is not within the sorted size";
  const int64_t in[] = {p.outer, p.size, p.inner}, out[] = {p.outer, p.k, p.inner};
  const int64_t in_count = product(in, 3), out_count = product(out, 3);
  if (in_count < 0 || out_count < 0) return "a size is negative or too large";
  const int64_t size = element_size(p.dtype);
  if (const char* why = Region().dim(in_count, 1).reads(c, 0, size)) return why;
  if (const char* why = Region().dim(out_count, 1).writes(c, 1, size)) return why;
  return Region().dim(out_count, 1).writes(c, 2, sizeof(int64_t));
}

int64_t count_tasks(const void* params, int64_t) {
  const Params& p = *static_cast<const Params*>(params);
  const int64_t lanes = p.outer * p.inner;
  return p.k == 0 || lanes == 0 ? 0 : (lanes - 1) / lanes_per_task(p) + 1;
}

int64_t scratch(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  if (p.outer == 0 || p.inner == 0) return 0;
  return static_cast<int64_t>(sizeof(Item)) * (selects(p) ? p.k : 2 * p.size);
}

int outputs(const void*) {
  return 2;
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  const int64_t rounds = 65 - __builtin_clzll(static_cast<uint64_t>(p.size) | 1);
  return saturated({p.outer, p.inner, p.size, rounds});
}

}  // namespace

extern const KernelEntry sort_kernel;
const KernelEntry sort_kernel = {"sort",      Params::kSchema, sizeof(Params), run,     check,
                                 count_tasks, scratch,         outputs,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
