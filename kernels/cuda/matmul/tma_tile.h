// Which tile of y a block of tma_matmul.h computes.
#pragma once
#include "kernels/cuda/matmul/linear_params.h"

namespace npusim {

constexpr int kTmaRows = NPUSIM_TILE_ROWS;
constexpr int kTmaOutputs = NPUSIM_TMA_COLUMNS / kParts;  // columns of y of a tile

// A tile of a block: its only one, or with NPUSIM_PERSISTENT_TILES, of so many, one of every
// gridDim.x.
struct TmaTile {
  static constexpr int kRowTiles = static_cast<int>(ceil_div(params.m, kTmaRows));
  int index = static_cast<int>(blockIdx.x);
  int first_row = NPUSIM_PERSISTENT_TILES ? index % kRowTiles * kTmaRows : index * kTmaRows;
  int first_column =
      (NPUSIM_PERSISTENT_TILES ? index / kRowTiles : static_cast<int>(blockIdx.y)) * kTmaOutputs;

  bool exists() const { return index < NPUSIM_PERSISTENT_TILES; }
  void advance() {
    index += static_cast<int>(gridDim.x);
    first_row = index % kRowTiles * kTmaRows;
    first_column = index / kRowTiles * kTmaOutputs;
  }
};

}  // namespace npusim
