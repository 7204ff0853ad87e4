#include "cpp/cpu/isa.h"

#include <cstdlib>
#include <string>

#include "cpp/runtime/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace npusim::cpu {

// NPUSIM_ISA_TABLE is NPUSIM_EACH(set) for each set that the kernels were compiled for, best first.
#define NPUSIM_EACH(set)                              \
  namespace set {                                     \
  std::span<const KernelEntry* const> kernel_table(); \
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

#if defined(__x86_64__)
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
[[maybe_unused]] bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

[[maybe_unused]] bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

[[maybe_unused]] bool runs_avx512bf16() {
  return runs_avx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}
#endif

#define NPUSIM_EACH(set) {#set, runs_##set, set::kernel_table},
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
