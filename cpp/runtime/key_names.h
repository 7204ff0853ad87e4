// How the keys of a program are spelled in a checkpoint that was saved from another module: one
// inside of the exported one ("model.conv.weight" is its "conv.weight"), or one around it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace npusim {

// (a beginning of the program's keys, what stands in its place in the checkpoint). The longest
// beginning that a key has counts, the first of equals.
using KeyNames = std::vector<std::pair<std::string, std::string>>;

// The checkpoint's name of a program's key.
std::string renamed(std::string_view key, const KeyNames& names);

// A sentence that names the renaming which would find every one of these keys, which the checkpoint
// lacks, among the names it has: with leading parts of their paths taken away, or with one before
// them. Empty where there is none.
std::string renaming_hint(const std::vector<std::string>& missing,
                          const std::vector<std::string_view>& present);

}  // namespace npusim
