// Which operands a product of few rows has, of floats or of codes, and which of them nothing
// writes: the parameters tell whether an RMS norm is beside it.
#pragma once
#include "kernels/cuda/matmul/linear_params.h"

namespace npusim {

template <typename P>
constexpr bool kHasNormEps = requires(P p) { p.norm_eps; };
template <typename P>
constexpr bool kHasSlots = requires(P p) { p.slots; };
template <typename P>
constexpr float norm_eps_of(const P& p) {
  if constexpr (kHasNormEps<P>) return p.norm_eps;
  return 0.0f;
}
template <typename P>
constexpr int slots_of(const P& p) {
  if constexpr (kHasSlots<P>) return p.slots;
  return 0;
}
using Params = decltype(params);
constexpr float kNormEps = norm_eps_of(params);
constexpr int kSlots = slots_of(params);
constexpr bool kNormed = kHasNormEps<Params> && !kHasSlots<Params>;
constexpr bool kBeforeNorm = kHasSlots<Params> && !kHasNormEps<Params>;
constexpr bool kAfterNorm = kHasNormEps<Params> && kSlots > 0;

// Operands between x and the rest: W, then the norm's weight, or the squares that the product
// before a norm has stored.
constexpr int kWeights = params.segments + (kNormed || kBeforeNorm || kAfterNorm ? 1 : 0);

// Whether nothing writes W (with the norm's weight) and the bias before in the method, so that they
// may be read before the wait.
constexpr unsigned kWeightBits = ((1u << (kAfterNorm ? params.segments : kWeights)) - 1) << 1;
constexpr bool kWeightsUnwritten = (unwritten_operands & kWeightBits) == kWeightBits;
constexpr bool kBiasUnwritten = (unwritten_operands >> (1 + kWeights) & 1) != 0;

}  // namespace npusim
