// The conversions of convert.h whose dtype is a number, once for all kernels of this instruction
// set.
#include "kernels/cpu/convert.h"

#include <algorithm>

namespace npusim::cpu::NPUSIM_ISA {

template <typename C>
void decode_run(int32_t dtype, const void* p, int64_t stride, int64_t n, C* out) {
  if (stride == 0 && n > 0) {
    std::fill_n(out, n, decode_one<C>(dtype, p));
    return;
  }
  with_storage(
      dtype, [&](auto type) { decode_run(static_cast<const decltype(type)*>(p), stride, n, out); });
}

template <typename C>
void encode_run(const C* in, int64_t step, int64_t n, int32_t dtype, void* p, int64_t stride) {
  with_storage(
      dtype, [&](auto type) { encode_run(in, step, n, static_cast<decltype(type)*>(p), stride); });
}

#define NPUSIM_CONVERT(C)                                               \
  template void decode_run(int32_t, const void*, int64_t, int64_t, C*); \
  template void encode_run(const C*, int64_t, int64_t, int32_t, void*, int64_t);
NPUSIM_CONVERT(float)
NPUSIM_CONVERT(double)
NPUSIM_CONVERT(int64_t)
#undef NPUSIM_CONVERT

}  // namespace npusim::cpu::NPUSIM_ISA
