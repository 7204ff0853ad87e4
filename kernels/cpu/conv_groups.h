// Convolutions whose groups have few channels: a vector of outputs spans several groups, as each
// product of a group alone would leave most of it empty. Called by conv.cpp, which has weights
// packed alike for all; computed in conv_groups.cpp.
#pragma once

#include "kernels/cpu/kernel.h"

namespace npusim::cpu::NPUSIM_ISA {

// Whether a checked convolution is one of these. The same for every batch and size of images.
bool spans_groups(const abi::ConvParams& p);

// What KernelEntry asks for of such a convolution.
int64_t spanning_tasks(const abi::ConvParams& p);
int64_t spanning_scratch(const abi::ConvParams& p);
void run_spanning(const KernelCall& call);

}  // namespace npusim::cpu::NPUSIM_ISA
