// Products of few terms and few columns, of many rows (attention's heads mixed with each other):
// a vector of results spans several rows, as one of a row's would be nearly empty. Called by
// gemm.cpp, which has weights packed alike for all; computed in gemm_narrow.cpp.
#pragma once

#include "kernels/cpu/kernel.h"

namespace npusim::cpu::NPUSIM_ISA {

// Whether a checked product is one of these, for every number of rows.
bool is_narrow(const abi::GemmParams& p);

// What KernelEntry asks for of such a product.
int64_t narrow_tasks(const abi::GemmParams& p);
int64_t narrow_scratch(const abi::GemmParams& p);
void run_narrow(const KernelCall& call);

}  // namespace npusim::cpu::NPUSIM_ISA
