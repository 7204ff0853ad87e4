// linear of the RMS norm of a few rows of x, which are normalised on the way (few_rows.h).
#include "kernels/metal/matmul/linear_source.h"
