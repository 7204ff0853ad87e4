// linear over weights that `quantize` wrote: rows of int8 or int4 codes with scales, in one to four
// segments.
//
// NPUSIM_PATH (common/paths.h) is GEMV_MULTISTAGE for one row of 16-bit x or a few, whose products
// with codes the tensor cores add up (gemv_codes.h); CODES_ROWS for up to 64, in the same order
// (codes_rows.h); CODES_TMA on Hopper for more, and in steps for any (tma_codes.h); GEMV_SIMT for
// few rows of x, in float32; TILE_MMA for 16-bit x: codes of int8 as they are, elements of int4
// rounded to x's type; or TILE_FLOAT.
#include "kernels/cuda/quantization/quantized_entry.h"
