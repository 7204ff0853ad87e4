// Whether this processor can run the file that includes this: tests of headers in kernels/cpu are
// compiled once per instruction set, like the kernels.
#pragma once

namespace npusim::tests {

inline constexpr int kSkipped = 77;  // CTest's SKIP_RETURN_CODE

inline bool processor_runs_this_file() {
#if defined(__AVX512BF16__)
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512vbmi");
#elif defined(__AVX512F__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

}  // namespace npusim::tests
