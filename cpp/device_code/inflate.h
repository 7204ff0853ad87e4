// Decompression of zlib streams (RFC 1950 and 1951), for sources stored in programs.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace npusim {

// Throws Error(kFormat), beginning with `what`, for a stream that is damaged, or that holds more
// than `most` bytes.
std::string inflate(std::span<const std::byte> stream, size_t most, const std::string& what);

}  // namespace npusim
