// quantized_linear of the RMS norm of a row of x, which is normalised on the way
// (kernels/metal/matmul/few_rows.h).
#include "kernels/metal/quantization/quantized_source.h"
