// How the warps of a block divide rows and keys on the tensor cores.
#pragma once
#include "kernels/cuda/attention/scores.h"

namespace npusim {

constexpr int kWarps = NPUSIM_WARPS, kThreads = kWarps * 32;
// Keys: of float32, which lie in parts, as many as fit a small device's shared memory.
constexpr int kWidest = larger(kD, kV);
constexpr int kTile = kIs16Bit<T> || kWidest <= 64 ? 64 : kWidest <= 128 ? 32 : 16;
constexpr int kRowWarps = NPUSIM_ROW_WARPS, kKeyWarps = kWarps / kRowWarps;
constexpr int kBlockRows = 16 * kRowWarps, kWarpKeys = kTile / kKeyWarps;

}  // namespace npusim
