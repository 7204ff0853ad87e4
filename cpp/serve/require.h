// What the engine's parts take for granted of each other. Broken, pages of one request could reach
// another one's answer: the program ends instead.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace npusim::serve {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "npusim: defect in the engine: expected %s\n", what);
  std::abort();
}

}  // namespace npusim::serve
