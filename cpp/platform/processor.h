// What this processor is, and which vector instructions it and the operating system let programs
// run.
#pragma once

#include <string>

namespace npusim::platform {

// As the system or the processor itself gives it, or an empty string.
std::string processor_name();

// The sets that kernels are compiled for (CMakeLists.txt has the flags of each). Asked of the
// processor and not of the compiler's library, which is not set up by every tool chain. False on
// processors that are not x86-64.
bool runs_avx2() noexcept;
bool runs_avx512() noexcept;
bool runs_avx512bf16() noexcept;

}  // namespace npusim::platform
