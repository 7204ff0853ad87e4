// quantized_linear of the RMS norm of one row of x. NPUSIM_PATH is GEMV_MULTISTAGE.
#include "kernels/cuda/quantization/quantized_entry.h"
