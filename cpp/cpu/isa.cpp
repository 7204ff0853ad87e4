#include "cpp/cpu/isa.h"

#include <cstdlib>
#include <string>

#include "cpp/platform/processor.h"
#include "cpp/runtime/error.h"

namespace npusim::cpu {

// NPUSIM_ISA_TABLE is NPUSIM_EACH(set) for each set that the kernels were compiled for, best first.
#define NPUSIM_EACH(set)                              \
  namespace set {                                     \
  std::span<const KernelEntry* const> kernel_table(); \
  const RateLoops& rate_loops();                      \
  }
NPUSIM_ISA_TABLE
#undef NPUSIM_EACH

namespace {

[[maybe_unused]] bool runs_baseline() {
  return true;
}

[[maybe_unused]] bool runs_neon() {
  return true;
}

using platform::runs_avx2, platform::runs_avx512, platform::runs_avx512bf16;

#define NPUSIM_EACH(set) {#set, runs_##set, set::kernel_table, set::rate_loops},
constexpr Isa kIsas[] = {NPUSIM_ISA_TABLE};
#undef NPUSIM_EACH

}  // namespace

std::vector<Isa> usable_isas() {
  std::vector<Isa> usable;
  for (const Isa& isa : kIsas) {
    if (isa.runs_here()) usable.push_back(isa);
  }
  return usable;
}

Isa choose_isa(std::string_view wanted) {
  const std::vector<Isa> usable = usable_isas();
  if (wanted.empty()) {
    const char* environment = std::getenv("NPUSIM_ISA");
    if (environment != nullptr) wanted = environment;
  }
  if (wanted.empty()) return usable.front();
  std::string names;
  for (const Isa& isa : usable) {
    if (isa.name == wanted) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  throw Error(ErrorCode::kDevice, "the instruction set " + std::string(wanted) +
                                      " cannot run on this processor; usable here: " + names);
}

}  // namespace npusim::cpu
