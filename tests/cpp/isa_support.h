// Whether this processor can run the file that includes this: tests of headers in kernels/cpu are
// compiled once per instruction set, like the kernels.
#pragma once

#include "cpp/platform/processor.h"

namespace npusim::tests {

inline constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE

inline bool processor_runs_this_file() {
#if defined(__AVX512BF16__)
  return platform::runs_avx512bf16();
#elif defined(__AVX512F__)
  return platform::runs_avx512();
#elif defined(__AVX2__)
  return platform::runs_avx2();
#else
  return true;
#endif
}

}  // namespace npusim::tests
