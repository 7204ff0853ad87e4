// linear whose y an RMS norm follows (norm_between.h). NPUSIM_PATH as in linear.cu, TILE_MMA,
// TMA or SWAP_AB; K is not split by a second launch.
#include "kernels/cuda/matmul/linear_entry.h"
