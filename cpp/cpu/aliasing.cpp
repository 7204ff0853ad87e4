#include "cpp/cpu/aliasing.h"

#include <algorithm>
#include <vector>

namespace npusim::cpu {
namespace {

// Bytes [low, high) of a space.
struct Interval {
  int64_t low, high;
};

bool overlap(Interval a, Interval b) {
  return a.low < b.high && b.low < a.high;
}

// A walk whose steps all go up: `at` is its lowest byte, strides are in bytes.
class Ascending {
 public:
  explicit Ascending(const PlacedWalk& placed) : at_(placed.address), bytes_(placed.walk.bytes) {
    const OperandWalk& walk = placed.walk;
    for (int i = 0; i < walk.rank; ++i) {
      const int64_t stride = walk.strides[i] * walk.bytes, last = walk.sizes[i] - 1;
      if (stride < 0) at_ += stride * last;
      if (stride != 0) dims_.push_back({stride < 0 ? -stride : stride, last});
    }
    std::sort(dims_.begin(), dims_.end(),
              [](const Dim& a, const Dim& b) { return a.stride > b.stride; });
  }

  int64_t greatest_stride() const { return dims_.empty() ? 0 : dims_.front().stride; }
  Interval interval() const {
    int64_t end = at_ + bytes_;
    for (const Dim& dim : dims_) end += dim.stride * dim.last;
    return {at_, end};
  }
  // Forgets the dimensions of this stride, which are the first ones.
  void drop(int64_t stride) {
    while (greatest_stride() == stride) dims_.erase(dims_.begin());
  }

 private:
  struct Dim {
    int64_t stride, last;
  };
  int64_t at_, bytes_;
  std::vector<Dim> dims_;  // the greatest stride first
};

Interval anything_of(const PlacedWalk& placed) {
  return {placed.address - placed.before, placed.address + placed.after};
}

}  // namespace

// With S the greatest stride of both: bytes i S + x and j S + y, x and y what the smaller strides
// reach, can only be the same one if x - y is a multiple of S. Where all of these differ by less
// than S, they are the same only if x = y: it is enough to look at the smaller strides.
bool are_disjoint(const PlacedWalk& a, const PlacedWalk& b) {
  if (a.space != b.space) return true;
  const bool known = a.walk.bytes != 0 && b.walk.bytes != 0;
  if ((a.walk.bytes != 0 && a.walk.count == 0) || (b.walk.bytes != 0 && b.walk.count == 0)) {
    return true;  // one touches nothing
  }
  if (!known) {
    const auto reach = [](const PlacedWalk& placed) {
      return placed.walk.bytes == 0 ? anything_of(placed) : Ascending(placed).interval();
    };
    return !overlap(reach(a), reach(b));
  }
  Ascending first(a), second(b);
  while (overlap(first.interval(), second.interval())) {
    const int64_t stride = std::max(first.greatest_stride(), second.greatest_stride());
    if (stride == 0) return false;
    first.drop(stride);
    second.drop(stride);
    const Interval x = first.interval(), y = second.interval();
    if (x.high - y.low > stride || y.high - x.low > stride) return false;
  }
  return true;
}

bool are_the_same(const PlacedWalk& a, const PlacedWalk& b) {
  const OperandWalk &x = a.walk, &y = b.walk;
  return a.space == b.space && a.address == b.address && x.bytes != 0 && x.bytes == y.bytes &&
         x.rank == y.rank && std::equal(x.sizes, x.sizes + x.rank, y.sizes) &&
         std::equal(x.strides, x.strides + x.rank, y.strides);
}

}  // namespace npusim::cpu
