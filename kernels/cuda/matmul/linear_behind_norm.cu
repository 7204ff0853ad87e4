// linear of rows that an RMS norm is to divide (norm_between.h). NPUSIM_PATH as in linear.cu,
// TILE_MMA, TMA or SWAP_AB.
#include "kernels/cuda/matmul/linear_entry.h"
