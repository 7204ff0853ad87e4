// Whether bytes from a file are text that may go into messages, Python strings and C strings.
#pragma once

#include <string_view>

namespace npusim {

// True for well-formed UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates).
bool is_utf8(std::string_view text) noexcept;

}  // namespace npusim
