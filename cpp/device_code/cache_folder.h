// Where the runtime keeps what it makes for a device, and the names of what lies there.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace npusim {

// The folder of a device, such as "cuda": in $NPUSIM_CACHE_DIR, or in npusim of $XDG_CACHE_HOME or
// of ~/.cache. Empty where the environment names none. It need not exist.
std::filesystem::path cache_folder(std::string_view device);

// A key made of all parts: 32 hexadecimal digits.
std::string cache_key(std::span<const std::string> parts);

}  // namespace npusim
