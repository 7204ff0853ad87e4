// Rotary position embedding of up to three tensors (queries, keys, values) at once, and the append
// of the results to a cache at a position read when the command runs. A thread has a pair of
// elements, or eight neighbouring ones (NPUSIM_EACH), so that y may be x's memory for a part that
// keeps its positions.
#include "kernels/cuda/common/mma_types.h"
#include "kernels/gpu/attention/rope.h"

namespace npusim {

// Eight pairs of a head, from `pair` on, whose elements are neighbours.
template <int kPart>
void rotate_eight(void* const* operands, int64_t batch, int64_t t, int64_t pair, int64_t position) {
  constexpr int64_t kPairs = pairs_of_head(kPart), kHalf = params.rotate[kPart] ? kPairs : 0;
  const int64_t head = pair / kPairs, j = pair % kPairs;
  const int64_t row = t + (params.at_position[kPart] ? position : 0);
  const T* x = static_cast<const T*>(operands[kPart]) + batch * params.x_strides[3 * kPart] +
               head * params.x_strides[3 * kPart + 1] + t * params.x_strides[3 * kPart + 2];
  T* y = static_cast<T*>(operands[kFirstOutput + kPart]) + batch * params.y_strides[3 * kPart] +
         head * params.y_strides[3 * kPart + 1] + row * params.y_strides[3 * kPart + 2];
  const C* cos = static_cast<const C*>(operands[kParts]) + batch * params.cs_strides[0] +
                 t * params.cs_strides[1];
  const C* sin = static_cast<const C*>(operands[kParts + 1]) + batch * params.cs_strides[2] +
                 t * params.cs_strides[3];
  const bool wide =
      is_aligned(x, 16) && is_aligned(y, 16) && is_aligned(cos, 16) && is_aligned(sin, 16);
  if (!wide) {
#pragma unroll 1
    for (int e = 0; e < 8; ++e) rotate<kPart>(operands, batch, t, pair + e, position);
    return;
  }
  const int64_t first = kHalf ? j : 2 * j, second = kHalf ? j + kHalf : 2 * j + 8;
  uint4 low = load_kept(x + first), high = load_kept(x + second);
  if constexpr (kHalf > 0) {
    float a[8], b[8], c[8], s[8], rotated[8];
    unpack<T>(low, a);
    unpack<T>(high, b);
    const auto packed = [&] {
      return uint4{pack_pair<T>(rotated[0], rotated[1]), pack_pair<T>(rotated[2], rotated[3]),
                   pack_pair<T>(rotated[4], rotated[5]), pack_pair<T>(rotated[6], rotated[7])};
    };
    load_floats<8>(cos + first, c);
    load_floats<8>(sin + first, s);
#pragma unroll
    for (int e = 0; e < 8; ++e) rotated[e] = a[e] * c[e] - b[e] * s[e];
    low = packed();
    load_floats<8>(cos + second, c);
    load_floats<8>(sin + second, s);
#pragma unroll
    for (int e = 0; e < 8; ++e) rotated[e] = b[e] * c[e] + a[e] * s[e];
    high = packed();
  }
  *reinterpret_cast<uint4*>(y + first) = low;
  *reinterpret_cast<uint4*>(y + second) = high;
}

template <int kPart>
void rotate_part(void* const* operands, int64_t batch, int64_t t, int64_t pair, int64_t position) {
  if constexpr (NPUSIM_EACH == 8) {
    rotate_eight<kPart>(operands, batch, t, pair, position);
  } else {
    rotate<kPart>(operands, batch, t, pair, position);
  }
}

// The position is read before the wait where nothing writes it before in the method.
inline void run(void* const* operands) {
  constexpr bool kUnwritten =
      params.has_position != 0 && (unwritten_operands >> (kParts + 2) & 1) != 0;
  int64_t position = 0;
  if constexpr (!kUnwritten) wait_on_dependencies();
  if constexpr (params.has_position != 0) {
    position = *static_cast<const volatile int64_t*>(operands[kParts + 2]);
  }
  if constexpr (kUnwritten) wait_on_dependencies();
  if constexpr (params.has_position != 0) {
    if (!fits(position, threadIdx.x, operands[NPUSIM_ARGUMENTS - 1])) return;
  }
  // 32 bits, which divide faster, are enough for the threads of a grid.
  constexpr unsigned kUnits = pairs_of_token() / NPUSIM_EACH;
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= params.batch * params.length * kUnits) return;
  const unsigned token = at / kUnits;
  const unsigned batch = token / static_cast<unsigned>(params.length);
  const unsigned t = token % static_cast<unsigned>(params.length);
  int64_t pair = at % kUnits * NPUSIM_EACH;
  if (pair < params.heads[0] * pairs_of_head(0)) {
    return rotate_part<0>(operands, batch, t, pair, position);
  }
  if constexpr (kParts > 1) {
    pair -= params.heads[0] * pairs_of_head(0);
    if (pair < params.heads[1] * pairs_of_head(1)) {
      return rotate_part<1>(operands, batch, t, pair, position);
    }
  }
  if constexpr (kParts > 2) {
    pair -= params.heads[1] * pairs_of_head(1);
    rotate_part<2>(operands, batch, t, pair, position);
  }
}

}  // namespace npusim

extern "C" __global__ void __launch_bounds__(NPUSIM_BLOCK) npusim_kernel(NPUSIM_SIGNATURE) {
  void* const operands[] = {NPUSIM_POINTERS};
  npusim::launch_dependents();
  npusim::run(operands);
}
