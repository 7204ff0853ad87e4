// The entry of a kernel with the operands x, [weight], [bias], y. npusim::Norm is made of the last
// two, which it may read before the wait where they are settled, and runs behind it.
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

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_TENSORS) {
  npusim::launch_dependents();
  const npusim::Norm norm(NPUSIM_VECTORS_GIVEN);
  npusim::wait_on_dependencies();
  norm.run(x, y);
}
