// How the warps of a block divide rows and keys on the tensor cores.
#pragma once
#include "kernels/cuda/attention/scores.h"

namespace npusim {

constexpr int kWarps = NPUSIM_WARPS, kThreads = kWarps * 32;
constexpr int kTile = 64;  // keys
constexpr int kRowWarps = NPUSIM_ROW_WARPS, kKeyWarps = kWarps / kRowWarps;
constexpr int kBlockRows = 16 * kRowWarps, kWarpKeys = kTile / kKeyWarps;

}  // namespace npusim
