// Host conversion between float dtypes, once at load. Rounds to nearest even; NaN stays NaN.
#pragma once

#include <cstddef>
#include <span>

#include "cpp/runtime/program.h"

namespace npusim {

bool is_float(DType dtype);

// Converts all elements of `from` into `to`, which has room for as many. Both dtypes are floats.
// The bytes need no alignment.
void convert_floats(std::span<const std::byte> from, DType from_dtype, std::span<std::byte> to,
                    DType to_dtype);

// Index of the first NaN, or -1.
int64_t first_nan(std::span<const std::byte> values, DType dtype);

}  // namespace npusim
