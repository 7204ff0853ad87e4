// The ways to compute a stem; NPUSIM_PATH is one of them, chosen with the launch configuration.
// codegen/cuda/paths.py has the same names and numbers.
#pragma once

#define NPUSIM_PATH_GEMV_SIMT 0        // few rows: warps stream rows of W, multiply-adds
#define NPUSIM_PATH_GEMV_MMA 1         // few rows: warps stream rows of W, tensor cores
#define NPUSIM_PATH_TILE_MMA 2         // tiles of 16-bit operands on the tensor cores
#define NPUSIM_PATH_TILE_SIMT 3        // tiles by multiply-adds, of any dtype
#define NPUSIM_PATH_TMA 4              // tiles by TMA and wgmma; TILE_MMA elsewhere than on sm_90a
#define NPUSIM_PATH_GEMV_MULTISTAGE 5  // one row: W through a multistage pipeline, tensor cores
#define NPUSIM_PATH_PATCH 6            // convolution of few channels: patches in shared memory
#define NPUSIM_PATH_LONG_HEADS 7       // attention of heads too long for tiles
#define NPUSIM_PATH_STRIP 8            // convolution in groups of few channels: strips of y
#define NPUSIM_PATH_CODES_ROWS 9       // few rows over codes: x from L2, tensor cores
#define NPUSIM_PATH_CODES_TMA 10       // tiles over codes, by TMA and wgmma; TILE_MMA elsewhere
#define NPUSIM_PATH_SWAP_AB 11         // few rows: W x^T by TMA and wgmma; TILE_MMA elsewhere
#define NPUSIM_PATH_TILE_FLOAT 12      // tiles of float32 on the tensor cores, in parts of bfloat16

#ifndef NPUSIM_PATH
#error "NPUSIM_PATH is to be defined: which way computes this stem"
#endif

#define NPUSIM_IS_GEMV                                                            \
  (NPUSIM_PATH == NPUSIM_PATH_GEMV_SIMT || NPUSIM_PATH == NPUSIM_PATH_GEMV_MMA || \
   NPUSIM_PATH == NPUSIM_PATH_GEMV_MULTISTAGE || NPUSIM_PATH == NPUSIM_PATH_CODES_ROWS)
