// The operands of a norm's entry: x, [weight], [bias], y.
#pragma once

#if NPUSIM_VECTORS == 2
#define NPUSIM_TENSORS                                                   \
  device const X *x [[buffer(0)]], device const W *weight [[buffer(1)]], \
      device const W *bias [[buffer(2)]], device Y *y [[buffer(3)]]
#define NPUSIM_VECTORS_GIVEN weight, bias
#elif NPUSIM_VECTORS == 1
#define NPUSIM_TENSORS \
  device const X *x [[buffer(0)]], device const W *vector [[buffer(1)]], device Y *y [[buffer(2)]]
#define NPUSIM_VECTORS_GIVEN vector, vector
#else
#define NPUSIM_TENSORS device const X *x [[buffer(0)]], device Y *y [[buffer(1)]]
#define NPUSIM_VECTORS_GIVEN nullptr, nullptr
#endif
