// Winograd's algorithm for convolutions whose weights are stored in 16 bits as `conv` has them
// (pack.cpp): kernels are transformed while it runs, a panel at a time, so that they take no more
// memory than they are stored in. For sets without a product of 16-bit floats, which multiply these
// no faster than floats. Called by conv.cpp, computed in conv_winograd.cpp.
#pragma once

#include "kernels/cpu/kernel.h"

namespace npusim::cpu::NPUSIM_ISA {

// Whether a checked convolution is one of these and gains by it. The same for every batch, so that
// an image's result does not depend on how many others there are.
bool transforms_stored(const abi::ConvParams& p);

// What KernelEntry asks for of such a convolution.
int64_t stored_winograd_tasks(const abi::ConvParams& p);
int64_t stored_winograd_scratch(const abi::ConvParams& p);
void run_stored_winograd(const KernelCall& call);

}  // namespace npusim::cpu::NPUSIM_ISA
