// Text from files: whether bytes are text at all, and how a name of a file goes into a message.
#pragma once

#include <string>
#include <string_view>

namespace npusim {

// True for well-formed UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates).
bool is_utf8(std::string_view text) noexcept;

// A name in quotes, fit for a message: cut at 80 bytes, so that a huge name that thousands of
// records share costs nothing, and without control characters.
std::string quote_name(std::string_view name);

}  // namespace npusim
