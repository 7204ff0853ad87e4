// linear of the RMS norm of one row of x. NPUSIM_PATH as in linear.cu, GEMV_SIMT or
// GEMV_MULTISTAGE.
#include "kernels/cuda/matmul/linear_entry.h"
