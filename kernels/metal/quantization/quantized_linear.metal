// linear over segments written by `quantize`: in tiles that turn codes into numbers of x's dtype,
// or where NPUSIM_FEW says how many rows x has, in streams of codes.
#include "kernels/metal/quantization/quantized_source.h"
