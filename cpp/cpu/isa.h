// Which of the compiled instruction sets this processor runs, and which one to use.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/rates.h"

namespace npusim::cpu {

// An instruction set the kernels were compiled for.
struct Isa {
  std::string_view name;
  bool (*runs_here)();
  std::span<const KernelEntry* const> (*kernels)();
  const RateLoops& (*rates)();
};

// The sets this processor can run, best first; at least one.
std::vector<Isa> usable_isas();

// The set named `wanted`; if that is empty, the one named by the environment variable NPUSIM_ISA;
// if that is empty too, the best. Throws Error(kDevice) for one that is not usable here.
Isa choose_isa(std::string_view wanted);

}  // namespace npusim::cpu
