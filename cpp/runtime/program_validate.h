// What must hold in a Program whose records have been read (docs/npubin.md, "Meaning, and what
// must hold"). `python/npusim/program/validate.py` is the same in Python.
#pragma once

#include "cpp/runtime/program.h"

namespace npusim {

inline constexpr int64_t kMaxBytes = int64_t{1} << 40;  // of a buffer, an arena, a tensor
inline constexpr uint32_t kMaxRank = 32;

// Throws Error(kFormat) that names the first breach and where it stands. Time and memory are
// (nearly) linear in the size of the program.
void validate(const Program& program);

}  // namespace npusim
