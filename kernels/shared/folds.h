// What sums and extremes fold by, on every GPU.
#pragma once

namespace npusim {

struct Plus {
  template <typename T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN of `b` is dropped.
struct Larger {
  template <typename T>
  T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

}  // namespace npusim
