#include "cpp/cpu/isa.h"

#include <cstdlib>
#include <string>

#include "cpp/runtime/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace npusim::cpu {

#if defined(__x86_64__)

namespace avx512bf16 {
std::span<const KernelEntry* const> kernel_table();
}
namespace avx512 {
std::span<const KernelEntry* const> kernel_table();
}
namespace avx2 {
std::span<const KernelEntry* const> kernel_table();
}
namespace baseline {
std::span<const KernelEntry* const> kernel_table();
}

namespace {

bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool runs_avx512bf16() {
  return runs_avx512() && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
}

constexpr Isa kIsas[] = {
    {"avx512bf16", runs_avx512bf16, avx512bf16::kernel_table},
    {"avx512", runs_avx512, avx512::kernel_table},
    {"avx2", runs_avx2, avx2::kernel_table},
    {"baseline", [] { return true; }, baseline::kernel_table},
};

}  // namespace

#elif defined(__aarch64__)

namespace neon {
std::span<const KernelEntry* const> kernel_table();
}
namespace {
constexpr Isa kIsas[] = {{"neon", [] { return true; }, neon::kernel_table}};
}  // namespace

#else

namespace baseline {
std::span<const KernelEntry* const> kernel_table();
}
namespace {
constexpr Isa kIsas[] = {{"baseline", [] { return true; }, baseline::kernel_table}};
}  // namespace

#endif

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
