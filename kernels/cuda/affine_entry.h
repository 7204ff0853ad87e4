// The entry of a kernel with the operands x, [weight], [bias], y: it calls npusim::norm.
#pragma once

#if NPUSIM_VECTORS == 2
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, const void* weight, const void* bias, void* y) {
  npusim::norm(x, weight, bias, y);
}
#elif NPUSIM_VECTORS == 1
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* x, const void* vector, void* y) {
  npusim::norm(x, vector, vector, y);
}
#else
extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(const void* x, void* y) {
  npusim::norm(x, nullptr, nullptr, y);
}
#endif
