#include "cpp/simulate/tile_sequence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpp/runtime/error.h"

namespace npusim::simulate {
namespace {

constexpr int64_t kMostTiles = int64_t{1} << 24;
constexpr int64_t kMany = 8;      // iterations from which on a loop may be worth a shortcut
constexpr size_t kOperands = 64;  // that a mask of bits holds
constexpr int kSumBytes = 4;
constexpr double kLargest = 0x1p58;  // what is counted of a tile, in 64 bits

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

[[noreturn]] void refuse(const char* what) {
  throw Error(ErrorCode::kInput, what);
}

}  // namespace

int64_t ticks_of(double cycles) {
  const double ticks = std::ceil(cycles * kTicks);
  if (!(ticks <= static_cast<double>(kLongest))) refuse("A tile takes longer than is counted.");
  return static_cast<int64_t>(ticks);
}

TileSequence::TileSequence(const Machine& machine, const Work& work)
    : machine_(machine), work_(work) {
  check();
  double count = 1;
  for (int a = 0; a < 4; ++a) {
    trips_[a] = ceil_div(work.sizes[a], work.tile[a]);
    count *= static_cast<double>(trips_[a]);
  }
  if (count > static_cast<double>(kMostTiles)) {
    refuse("A command of more than 2^24 tiles is not walked.");
  }
  for (const int axis : work.loops) {
    if (axis != kK) loops_.push_back(axis);
  }
  for (size_t l = loops_.size(); l-- > 0;) {
    radix_[loops_[l]] = results_;
    results_ *= trips_[loops_[l]];
  }
  for (size_t mask = 0; mask < times_.size(); ++mask) {
    Place at{};
    for (size_t a = 0; a < 4; ++a) at[a] = mask >> a & 1 ? trips_[a] - 1 : 0;
    times_[mask] = times_of(extent(at));
  }
  for (const Operand& operand : work.operands) {
    // A loop that the operand has not moves it again, if within it another one moves.
    __int128 elements = 1;
    bool inside = false;
    for (size_t l = work.loops.size(); l-- > 0;) {
      const int axis = work.loops[l];
      if (operand.axes >> axis & 1) {
        inside = inside || trips_[axis] > 1;
      } else if (inside && !operand.resident) {
        elements *= trips_[axis];
      }
    }
    for (int a = 0; a < 4; ++a) {
      if (operand.axes >> a & 1) elements *= work.sizes[a];
    }
    once_.push_back(elements);
  }
  find_levels();
}

void TileSequence::check() const {
  for (int a = 0; a < 4; ++a) {
    if (work_.sizes[a] < 1 || work_.tile[a] < 1 || work_.tile[a] > work_.sizes[a]) {
      refuse("A tile has to be within sizes of at least 1.");
    }
  }
  std::array<bool, 4> looped{};
  for (size_t l = 0; l < work_.loops.size(); ++l) {
    const int axis = work_.loops[l];
    if (axis < 0 || axis > kK || looped[axis] || (axis == kK && l + 1 < work_.loops.size())) {
      refuse("Loops are axes, each once, and k the innermost.");
    }
    looped[axis] = true;
  }
  for (int a = 0; a < 4; ++a) {
    if (!looped[a] && work_.tile[a] < work_.sizes[a]) refuse("An axis of tiles is looped over.");
  }
  if (work_.operands.size() > kOperands) refuse("A command has at most 64 operands.");
  const Memory& m = machine_.memory;
  const Array& array = machine_.array;
  double largest = static_cast<double>(array.rows) * static_cast<double>(array.cols);
  for (const int64_t size : {work_.taps, work_.element_bytes}) {
    largest *= static_cast<double>(size);
  }
  for (const int64_t size : work_.tile) largest *= static_cast<double>(size);
  if (!(largest <= kLargest)) refuse("A tile of so many elements is not walked.");
  // Written so that a NaN is refused, too.
  check_rates(m);
  const bool rates = m.acc_bytes_per_cycle > 0 && machine_.array_share > 0 &&
                     machine_.array_share <= 1 && machine_.overlap_p >= 1 &&
                     array.macs_per_cycle > 0 && work_.vector_rate > 0;
  const bool counts = machine_.cores >= 1 && m.dma_channels >= 1 && m.dram_channels >= 1 &&
                      m.burst_bytes >= 1 && m.max_dims >= 1 && m.interleave_bytes >= 1 &&
                      array.rows >= 1 && array.cols >= 1 && array.arrays >= 1 && work_.taps >= 1 &&
                      static_cast<int64_t>(m.hops.size()) == machine_.cores;
  const auto is_delay = [](int64_t cycles) { return cycles >= 0 && cycles <= kLongest / kTicks; };
  const bool delays = is_delay(m.setup_cycles) && is_delay(m.hop_cycles) &&
                      is_delay(m.read_latency) && is_delay(m.write_latency) &&
                      is_delay(machine_.sync_cycles) && array.min_stream_rows >= 0;
  if (!rates || !counts || !delays)
    refuse("A machine has rates above 0, parts of each kind, and delays below 2^50 cycles.");
}

int64_t TileSequence::steps(int core) const {
  return (results_ - core + machine_.cores - 1) / machine_.cores * trips_[kK];
}

Place TileSequence::place(int core, int64_t step) const {
  int64_t result = core + machine_.cores * (step / trips_[kK]);
  Place at{};
  at[kK] = step % trips_[kK];
  for (size_t l = loops_.size(); l-- > 0;) {
    at[loops_[l]] = result % trips_[loops_[l]];
    result /= trips_[loops_[l]];
  }
  return at;
}

Place TileSequence::extent(const Place& at) const {
  Place out;
  for (int a = 0; a < 4; ++a) {
    out[a] = std::min(work_.tile[a], work_.sizes[a] - at[a] * work_.tile[a]);
  }
  return out;
}

size_t TileSequence::last_mask(const Place& at) const {
  size_t mask = 0;
  for (size_t a = 0; a < 4; ++a) mask |= size_t{at[a] + 1 == trips_[a]} << a;
  return mask;
}

TileTimes TileSequence::times_of(const Place& size) const {
  const Array& array = machine_.array;
  const Memory& memory = machine_.memory;
  // What follows an array passes when its sums are whole; else every tile along k does its part.
  const auto elements = [this](const Place& extent) {
    const double along_k = work_.on_array ? 1 : static_cast<double>(extent[kK]);
    return along_k * static_cast<double>(extent[kB]) * static_cast<double>(extent[kM]) *
           static_cast<double>(extent[kN]);
  };
  TileTimes out;
  out.vector = ticks_of(
      vector_cycles(work_.vector, work_.vector_rate, elements(size), elements(work_.sizes)));
  if (!work_.on_array) return out;
  const auto [product, repeats] = products_of(array, size, work_.taps, work_.depthwise);
  out.compute =
      ticks_of(static_cast<double>(array_cycles(array, product, repeats)) / machine_.array_share);
  const Folds folds = array.dataflow->folds(product, array.rows, array.cols);
  out.sram_bytes = (folds.x + folds.w) * work_.element_bytes * repeats;
  const double sums =
      kSumBytes * static_cast<double>(folds.sums * repeats) / std::max(1.0, array.macs_per_cycle);
  const double needed = std::max(static_cast<double>(out.sram_bytes) / memory.sram_bytes_per_cycle,
                                 sums / memory.acc_bytes_per_cycle);
  out.bank = std::max<int64_t>(0, ticks_of(needed) - out.compute);
  return out;
}

bool TileSequence::same(const Place& a, const Place& b, int axes) const {
  for (int axis = 0; axis < 4; ++axis) {
    if ((axes >> axis & 1) && a[axis] != b[axis]) return false;
  }
  return true;
}

int64_t TileSequence::result_of(const Place& at) const {
  int64_t result = 0;
  for (const int axis : loops_) result += at[axis] * radix_[axis];
  return result;
}

// Whether a core had a tile with these coordinates along `axes` before: one whose other
// coordinates come earlier, among the results that are the core's.
bool TileSequence::met_before(int core, const Place& at, int axes) const {
  if (!(axes >> kK & 1) && at[kK] > 0) return true;
  std::array<int, 3> others;
  size_t count = 0;
  for (const int axis : loops_) {
    if (!(axes >> axis & 1) && trips_[axis] > 1) others[count++] = axis;
  }
  const int64_t result = result_of(at);
  Place earlier = at;
  for (size_t o = 0; o < count; ++o) earlier[others[o]] = 0;
  while (true) {
    const int64_t other = result_of(earlier);
    if (other >= result) return false;
    if (other % machine_.cores == core) return true;
    size_t o = count;
    while (o-- > 0) {
      if (++earlier[others[o]] < trips_[others[o]]) break;
      earlier[others[o]] = 0;
    }
    if (o == static_cast<size_t>(-1)) return false;
  }
}

uint64_t TileSequence::loads(int core, int64_t step) const {
  uint64_t out = 0;
  const Place at = place(core, step);
  const Place before = step > 0 ? place(core, step - 1) : at;
  for (size_t o = 0; o < work_.operands.size(); ++o) {
    const Operand& operand = work_.operands[o];
    if (operand.write || !operand.moved || !operand.total_bytes) continue;
    if (step > 0 && same(at, before, operand.axes)) continue;
    if (operand.resident && met_before(core, at, operand.axes)) continue;
    out |= uint64_t{1} << o;
  }
  return out;
}

uint64_t TileSequence::stores(int core, int64_t step) const {
  uint64_t out = 0;
  const bool ends = step + 1 == steps(core);
  const Place at = place(core, step);
  const Place next = ends ? at : place(core, step + 1);
  for (size_t o = 0; o < work_.operands.size(); ++o) {
    const Operand& operand = work_.operands[o];
    if (!operand.write || !operand.moved || !operand.total_bytes) continue;
    if (ends || !same(at, next, operand.axes)) out |= uint64_t{1} << o;
  }
  return out;
}

__int128 TileSequence::volume(const Place& at, size_t operand) const {
  __int128 out = 1;
  const Place size = extent(at);
  for (int a = 0; a < 4; ++a) {
    if (work_.operands[operand].axes >> a & 1) out *= size[a];
  }
  return out;
}

int64_t TileSequence::bytes(const Place& at, size_t operand) const {
  const __int128 whole = once_[operand];
  const __int128 part = volume(at, operand) * work_.operands[operand].total_bytes;
  return static_cast<int64_t>((part + whole - 1) / whole);
}

int64_t TileSequence::setups(const Place& at, size_t operand, int64_t rows) const {
  if (rows == 1 || machine_.memory.max_dims > 2) return 1;
  if (machine_.memory.max_dims == 1) return rows;
  return work_.operands[operand].axes >> kB & 1 ? extent(at)[kB] : 1;
}

int64_t TileSequence::moved(size_t operand, __int128 elements) const {
  return static_cast<int64_t>(elements * work_.operands[operand].total_bytes / once_[operand]);
}

void TileSequence::find_levels() {
  if (trips_[kK] >= kMany) levels_.push_back({kK, 0, 1});
  for (size_t l = loops_.size(); l-- > 0;) {
    const int axis = loops_[l];
    const int64_t results = radix_[axis];
    const int64_t turns = machine_.cores / std::gcd(results, machine_.cores);
    if (trips_[axis] >= kMany * turns) {
      levels_.push_back({axis, results, turns * results / machine_.cores * trips_[kK]});
    }
  }
}

bool TileSequence::alike(const Level& level, int64_t first, int64_t last) const {
  return room(level, first, last) >= 0;
}

int64_t TileSequence::room(const Level& level, int64_t first, int64_t last) const {
  const int64_t sums = trips_[kK], cores = machine_.cores;
  if (first < 1) return -1;
  if (!level.results) {
    // The step before and the step behind are of the same result and not at its ends.
    if ((first - 1) / sums != (last + 1) / sums || (first - 1) % sums < 1) return -1;
    const int64_t left = sums - 2 - (last + 1) % sums;
    return left >= 0 ? left / level.stride : -1;
  }
  // Results of all cores from the one before the first step to the one behind the last.
  const int64_t from = cores * (first / sums - 1), to = cores * (last / sums + 2) - 1;
  const int64_t whole = level.results * trips_[level.axis];
  if (from < 0 || from / whole != to / whole) return -1;
  const int64_t begin = cores > 1 ? cores : 1;  // by then every core has met what stays
  if (from % whole / level.results < begin) return -1;
  const int64_t end = to % whole / level.results, most = trips_[level.axis] - 2;
  if (end > most) return -1;
  const int64_t turns = level.stride * cores / (level.results * sums);
  return (most - end) / turns;
}

}  // namespace npusim::simulate
