// Bits of CPUID and XGETBV as in Intel's Software Developer's Manual, volume 2A, CPUID.
#include "cpp/platform/processor.h"

#if defined(__x86_64__)

#include <cpuid.h>

#include <cstdint>

namespace npusim::platform {
namespace {

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zeros for one that the processor does not have.
Leaf leaf(unsigned number, unsigned part = 0) noexcept {
  Leaf found;
  __get_cpuid_count(number, part, &found.eax, &found.ebx, &found.ecx, &found.edx);
  return found;
}

bool has(unsigned word, unsigned mask) noexcept {
  return (word & mask) == mask;
}

// Which registers the operating system saves when threads change.
bool saves(unsigned mask) noexcept {
  constexpr unsigned kXgetbvWorks = 1u << 27;
  if (!has(leaf(1).ecx, kXgetbvWorks)) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return has(low, mask);
}

constexpr unsigned kYmm = 0x6, kZmm = 0xE6;

struct Runs {
  bool avx2, avx512, avx512bf16;
};

Runs found() noexcept {
  constexpr unsigned kFma = 1u << 12, kAvx = 1u << 28, kF16c = 1u << 29;    // 1, ECX
  constexpr unsigned kAvx2 = 1u << 5;                                       // 7, EBX
  constexpr unsigned kFDqBwVl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // 7, EBX
  constexpr unsigned kVbmi = 1u << 1, kVnni = 1u << 11;                     // 7, ECX
  constexpr unsigned kBf16 = 1u << 5;                                       // 7.1, EAX
  const Leaf basic = leaf(1), more = leaf(7), still_more = more.eax > 0 ? leaf(7, 1) : Leaf{};
  Runs runs{};
  runs.avx2 = has(basic.ecx, kFma | kAvx | kF16c) && has(more.ebx, kAvx2) && saves(kYmm);
  runs.avx512 = runs.avx2 && has(more.ebx, kFDqBwVl) && saves(kZmm);
  runs.avx512bf16 = runs.avx512 && has(more.ecx, kVbmi | kVnni) && has(still_more.eax, kBf16);
  return runs;
}

const Runs& runs() noexcept {
  static const Runs kept = found();
  return kept;
}

}  // namespace

bool runs_avx2() noexcept {
  return runs().avx2;
}

bool runs_avx512() noexcept {
  return runs().avx512;
}

bool runs_avx512bf16() noexcept {
  return runs().avx512bf16;
}

}  // namespace npusim::platform

#else

namespace npusim::platform {

bool runs_avx2() noexcept {
  return false;
}

bool runs_avx512() noexcept {
  return false;
}

bool runs_avx512bf16() noexcept {
  return false;
}

}  // namespace npusim::platform

#endif
