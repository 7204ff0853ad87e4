#include "cpp/metal/hazards.h"

#include <algorithm>

namespace npusim::metal {
namespace {

bool conflict(const Touched& a, const Touched& b) {
  return (a.written || b.written) && a.storage == b.storage && a.first < b.last && b.first < a.last;
}

}  // namespace

bool Hazards::needs_barrier(const std::vector<Touched>& effects) {
  const bool waits = std::any_of(effects.begin(), effects.end(), [&](const Touched& effect) {
    return std::any_of(open_.begin(), open_.end(),
                       [&](const Touched& before) { return conflict(effect, before); });
  });
  if (waits) open_.clear();
  open_.insert(open_.end(), effects.begin(), effects.end());
  return waits;
}

}  // namespace npusim::metal
