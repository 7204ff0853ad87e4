// y = act(x · Wᵀ + bias + residual), or its gated form, over rows of W as a checkpoint stores them:
// tiles (tile.h), or where NPUSIM_FEW says how many rows x has, streams of W (few_rows.h).
#include "kernels/metal/matmul/linear_source.h"
