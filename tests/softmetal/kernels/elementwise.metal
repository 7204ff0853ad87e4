// y = a x + b, with a function constant that adds one, and elements beyond the vectors of four.
#include <metal_stdlib>
using namespace metal;

constant bool plus_one [[function_constant(0)]];

struct Affine {
  float a, b;
  uint count;
};

static float apply(float x, constant Affine& p) { return p.a * x + p.b + (plus_one ? 1.0 : 0.0); }

kernel void affine(device const T* x [[buffer(0)]], device T* y [[buffer(1)]],
                   constant Affine& p [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  const uint first = 4 * i;
  if (first + 4 <= p.count) {
    for (uint k = 0; k < 4; ++k) y[first + k] = static_cast<T>(apply(static_cast<float>(x[first + k]), p));
    return;
  }
  for (uint k = first; k < p.count; ++k) y[k] = static_cast<T>(apply(static_cast<float>(x[k]), p));
}
