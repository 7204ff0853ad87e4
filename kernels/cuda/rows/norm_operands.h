// The operands of a norm's entry: x, [weight], [bias], y.
#pragma once

#if NPUSIM_VECTORS == 2
#define NPUSIM_TENSORS const void *x, const void *weight, const void *bias, void *y
#define NPUSIM_VECTORS_GIVEN weight, bias
#elif NPUSIM_VECTORS == 1
#define NPUSIM_TENSORS const void *x, const void *vector, void *y
#define NPUSIM_VECTORS_GIVEN vector, vector
#else
#define NPUSIM_TENSORS const void *x, void *y
#define NPUSIM_VECTORS_GIVEN nullptr, nullptr
#endif
