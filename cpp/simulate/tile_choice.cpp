#include "cpp/simulate/tile_choice.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>

#include "cpp/runtime/error.h"
#include "cpp/simulate/tile_sequence.h"

namespace npusim::simulate {
namespace {

constexpr size_t kAxes = 4;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

bool has(const TiledOperand& operand, int axis) {
  return operand.axes >> axis & 1;
}

int64_t volume(const Extents& extents) {
  return extents[kB] * extents[kM] * extents[kN] * extents[kK];
}

void check(const TiledMachine& machine, const TiledWork& work) {
  __int128 elements = 1;
  for (const int64_t size : work.sizes) {
    if (size < 1) throw Error(ErrorCode::kInput, "An axis has at least 1.");
    elements *= size;
    if (elements > int64_t{1} << 60) {
      throw Error(ErrorCode::kInput, "A command of so many elements is not cut into tiles.");
    }
  }
  for (const int64_t granule : machine.granule) {
    if (granule < 1) throw Error(ErrorCode::kInput, "Multiples of tiles are at least 1.");
  }
  const auto& [array, memory, cores, sync, share, overlap] = machine.machine;
  const bool counts = std::min({cores, memory.dma_channels, memory.burst_bytes, array.rows,
                                array.cols, array.arrays, work.taps}) >= 1;
  const bool rates = memory.dram_channels > 0 && work.vector_rate > 0 && share > 0 && overlap >= 1;
  if (!counts || !rates || memory.setup_cycles < 0 || sync < 0) {
    throw Error(ErrorCode::kInput, "A machine's counts and rates are above 0.");
  }
  simulate::check_rates(memory);
  for (const TiledOperand& one : work.operands) {
    if (one.bytes < 0 || one.halo_bytes < 0 || one.inner < 0 ||
        one.inner >= static_cast<int>(kAxes)) {
      throw Error(ErrorCode::kInput, "An operand's bytes or axis mean nothing.");
    }
  }
}

// Bytes of a whole tile, rounded up; with those that neighbours along m share.
int64_t tile_bytes(const TiledOperand& operand, const Extents& sizes, const Extents& tile) {
  __int128 whole = 1, part = 1;
  for (int axis = 0; axis < static_cast<int>(kAxes); ++axis) {
    if (!has(operand, axis)) continue;
    whole *= sizes[axis];
    part *= tile[axis];
  }
  const __int128 bytes = (operand.bytes * part + whole - 1) / whole;
  const int64_t halo = tile[kM] < sizes[kM] ? operand.halo_bytes : 0;
  return static_cast<int64_t>(std::min<__int128>(bytes + halo, operand.bytes));
}

// Bytes of a tile that lie side by side: a part of a row, or all of the tile.
int64_t row_bytes(const TiledOperand& operand, const Extents& sizes, const Extents& tile) {
  const int64_t whole = tile_bytes(operand, sizes, tile);
  const auto inner = static_cast<size_t>(operand.inner);
  if (!has(operand, operand.inner) || tile[inner] == sizes[inner]) {
    return std::max<int64_t>(1, whole);
  }
  int64_t rows = 1;
  for (int axis = 0; axis < static_cast<int>(kAxes); ++axis) {
    if (has(operand, axis) && axis != operand.inner) rows *= tile[static_cast<size_t>(axis)];
  }
  return std::max<int64_t>(1, whole / rows);
}

Extents trips_of(const Extents& sizes, const Extents& tile) {
  Extents out;
  for (size_t axis = 0; axis < kAxes; ++axis) out[axis] = ceil_div(sizes[axis], tile[axis]);
  return out;
}

// How many tiles of an operand are moved. A loop that it has moves another tile at each turn; one
// that it has not, outside of one that it has, moves them all again.
int64_t transfers(const TiledOperand& operand, const Extents& trips, const Tiling& tiling,
                  bool resident) {
  const auto inwards =
      tiling.n_before_m ? std::array<int, 4>{kK, kM, kN, kB} : std::array<int, 4>{kK, kN, kM, kB};
  int64_t moved = 1;
  bool inside = false;
  for (const int axis : inwards) {
    const int64_t turns = trips[static_cast<size_t>(axis)];
    if (has(operand, axis)) {
      moved *= turns;
      inside = inside || turns > 1;
    } else if (inside && !resident) {
      moved *= turns;
    }
  }
  return moved;
}

// Bytes of so many tiles, those at the ends being smaller.
int64_t moved_bytes(const TiledOperand& operand, const Extents& trips, int64_t count) {
  int64_t once = 1;
  for (int axis = 0; axis < static_cast<int>(kAxes); ++axis) {
    if (has(operand, axis)) once *= trips[static_cast<size_t>(axis)];
  }
  const bool halo = has(operand, kM) && once > 1;
  const __int128 more = halo ? __int128{operand.halo_bytes} * (count - count / once) : 0;
  const __int128 bytes = __int128{operand.bytes} * count / once + more;
  if (bytes > int64_t{1} << 62) {
    throw Error(ErrorCode::kInput, "A command that moves so many bytes is not cut into tiles.");
  }
  return static_cast<int64_t>(bytes);
}

// Calls `visit` with each different tile, and how many there are of it: whole ones, what is left.
template <typename Visit>
void each_tile(const Extents& sizes, const Extents& tile, Visit visit, size_t axis = 0,
               Extents at = {}, int64_t count = 1) {
  if (axis == kAxes) {
    visit(count, at);
    return;
  }
  const int64_t whole = sizes[axis] / tile[axis], left = sizes[axis] % tile[axis];
  at[axis] = tile[axis];
  if (whole) each_tile(sizes, tile, visit, axis + 1, at, count * whole);
  at[axis] = left;
  if (left) each_tile(sizes, tile, visit, axis + 1, at, count);
}

// Tilings of one work, and what they take.
class Choice {
 public:
  Choice(const TiledMachine& machine, const TiledWork& work)
      : described_(machine),
        machine_(machine.machine),
        memory_(machine.machine.memory),
        work_(work) {
    check(machine, work);
    rate_ = std::min(static_cast<double>(memory_.dma_channels) * memory_.dma_bytes_per_cycle,
                     memory_.dram_bytes_per_cycle);
  }

  std::optional<Tiling> best();
  Assessed assess(const Tiling& tiling);

 private:
  // ---- what is tried
  std::vector<int64_t> extents(size_t axis, int64_t granule) const;
  bool fits(const Tiling& tiling) const;
  std::vector<Tiling> tilings() const;
  int64_t tiles_bytes(const Tiling& tiling) const;
  int64_t whole_bytes(const Tiling& tiling) const {
    return tiling.resident < 0 ? 0 : work_.operands[static_cast<size_t>(tiling.resident)].bytes;
  }
  int64_t buffers() const { return described_.double_buffer ? 2 : 1; }
  // ---- what it takes
  double cores(const Extents& tile) const;
  double array_cycles(const Extents& tile) const;
  double vector_cycles(Extents tile) const;
  double copied(int64_t bytes, int64_t count, int64_t row) const;
  double least(const Extents& trips, const std::vector<TiledTraffic>& traffic) const;
  int64_t walked(const Tiling& tiling, const Assessed& assessed, int64_t most) const;

  const TiledMachine& described_;
  const Machine& machine_;
  const Memory& memory_;
  const TiledWork& work_;
  double rate_;         // bytes a cycle of all copies
  Extents computed_{};  // the tile that these are of: neighbours have the same
  double array_ = 0, vector_ = 0;
};

// ---- what is tried

// Walks the one that seems best, and those that may be shorter, the likeliest first.
std::optional<Tiling> Choice::best() {
  struct Tried {
    Tiling tiling;
    Assessed assessed;
  };
  std::vector<Tried> tried;
  for (const Tiling& one : tilings()) tried.push_back({one, assess(one)});
  if (tried.empty()) return std::nullopt;
  const auto estimate = [](const Tried& one) {
    return std::tuple{one.assessed.cycles, one.assessed.moved_bytes, one.assessed.tiles};
  };
  const auto seems = [&](const Tried& a, const Tried& b) { return estimate(a) < estimate(b); };
  std::iter_swap(tried.begin(), std::min_element(tried.begin(), tried.end(), seems));
  if (!work_.walked) return tried.front().tiling;
  const auto shorter = [](const Tried& a, const Tried& b) {
    return a.assessed.least_cycles < b.assessed.least_cycles;
  };
  std::stable_sort(tried.begin() + 1, tried.end(), shorter);
  const auto key = [&](const Tried& one, int64_t most) {
    return std::tuple{walked(one.tiling, one.assessed, most), one.assessed.moved_bytes,
                      one.assessed.tiles};
  };
  const Tried* best = &tried.front();
  auto least = key(*best, std::numeric_limits<int64_t>::max());
  for (size_t i = 1; i < tried.size(); ++i) {
    const double bound = tried[i].assessed.least_cycles * static_cast<double>(kTicks);
    if (bound >= static_cast<double>(std::get<0>(least))) break;
    const auto found = key(tried[i], std::get<0>(least));
    if (!(found < least)) continue;
    best = &tried[i];
    least = found;
  }
  return best->tiling;
}

// All that fit.
std::vector<Tiling> Choice::tilings() const {
  std::vector<Tiling> out;
  if (described_.room < 0) return out;
  std::vector<int> residents{-1};
  for (size_t o = 0; work_.products && o < work_.operands.size(); ++o) {
    const TiledOperand& one = work_.operands[o];
    const bool several = std::popcount(static_cast<unsigned>(one.axes)) > 1;
    if (!one.write && !one.here && !one.inside && several) residents.push_back(static_cast<int>(o));
  }
  const std::vector<int64_t> whole{work_.sizes[kN]};
  const std::vector<int64_t> depths = extents(kK, described_.granule[kK]);
  for (const int64_t m : extents(kM, work_.products ? described_.granule[kM] : 1)) {
    for (const int64_t n : work_.whole_rows ? whole : extents(kN, described_.granule[kN])) {
      for (const int resident : residents) {
        Tiling tiling{{1, m, n, 1}, false, resident};
        for (const int64_t depth : depths) {
          tiling.tile[kK] = depth;
          if (!fits(tiling)) continue;
          for (const bool n_before_m : {false, true}) {
            tiling.n_before_m = n_before_m;
            if (work_.products || !n_before_m) out.push_back(tiling);
          }
        }
      }
    }
  }
  return out;
}

// Extents of a tile that are tried along an axis, from the least.
std::vector<int64_t> Choice::extents(size_t axis, int64_t granule) const {
  const int64_t size = work_.sizes[axis], count = ceil_div(size, granule);
  std::vector<int64_t> out;
  for (int64_t step = 1; step < count; step += count <= kEvery ? 1 : step) {
    out.push_back(granule * step);
  }
  out.push_back(size);
  return out;
}

// Whether the sums of a tiling have room, and its tiles beside what is kept whole.
bool Choice::fits(const Tiling& tiling) const {
  const int64_t sums = tiling.tile[kM] * tiling.tile[kN];
  if (work_.on_array && sums > described_.sums_room / kSumBytes) return false;
  const int64_t room = described_.room / buffers() - whole_bytes(tiling) / buffers();
  return tiles_bytes(tiling) <= room;
}

int64_t Choice::tiles_bytes(const Tiling& tiling) const {
  int64_t out = 0;
  for (size_t o = 0; o < work_.operands.size(); ++o) {
    if (work_.operands[o].here || tiling.resident == static_cast<int>(o)) continue;
    out += tile_bytes(work_.operands[o], work_.sizes, tiling.tile);
  }
  return out;
}

// ---- what it takes

Assessed Choice::assess(const Tiling& tiling) {
  const Extents trips = trips_of(work_.sizes, tiling.tile);
  Assessed out{};
  double memory = 0, first = 0;
  for (size_t o = 0; o < work_.operands.size(); ++o) {
    const TiledOperand& one = work_.operands[o];
    const int64_t tile = tile_bytes(one, work_.sizes, tiling.tile);
    const int64_t row = row_bytes(one, work_.sizes, tiling.tile);
    out.operands.push_back({tile, row, 0, 0});
    if (one.here || one.inside) continue;
    const bool resident = tiling.resident == static_cast<int>(o);
    const int64_t count = transfers(one, trips, tiling, resident);
    const int64_t bytes = moved_bytes(one, trips, count);
    memory += copied(bytes, count, row);
    first += copied(tile, 1, row);
    out.moved_bytes += bytes;
    out.operands.back() = {tile, row, count, bytes};
  }
  if (computed_ != tiling.tile) {
    array_ = work_.on_array ? array_cycles(tiling.tile) : 0;
    vector_ = vector_cycles(tiling.tile);
    computed_ = tiling.tile;
  }
  out.array_cycles = array_;
  out.vector_cycles = vector_;
  const double computed = std::max(array_, vector_);
  out.cycles = described_.double_buffer ? std::max(computed, memory) + first : computed + memory;
  out.tiles = volume(trips);
  out.least_cycles = least(trips, out.operands);
  out.bytes = whole_bytes(tiling) + buffers() * tiles_bytes(tiling);
  return out;
}

// That work: there is none without a result.
double Choice::cores(const Extents& tile) const {
  const Extents trips = trips_of(work_.sizes, tile);
  return static_cast<double>(std::min(machine_.cores, trips[kB] * trips[kM] * trips[kN]));
}

double Choice::array_cycles(const Extents& tile) const {
  __int128 total = 0;
  each_tile(work_.sizes, tile, [&](int64_t count, const Extents& part) {
    const auto [product, repeats] = products_of(machine_.array, part, work_.taps, work_.depthwise);
    total += __int128{count} * simulate::array_cycles(machine_.array, product, repeats);
  });
  return static_cast<double>(total) / cores(tile);
}

// On an array sums are whole before they pass.
double Choice::vector_cycles(Extents tile) const {
  if (work_.on_array) tile[kK] = work_.sizes[kK];
  const auto whole = static_cast<double>(volume(work_.sizes));
  double total = 0;
  each_tile(work_.sizes, tile, [&](int64_t count, const Extents& part) {
    const double one = simulate::vector_cycles(work_.vector, work_.vector_rate,
                                               static_cast<double>(volume(part)), whole);
    total += static_cast<double>(count) * one;
  });
  return total / cores(tile);
}

// Cycles of copies of so many bytes in all, in rows of some bytes.
double Choice::copied(int64_t bytes, int64_t count, int64_t row) const {
  const int64_t bursts = ceil_div(row, memory_.burst_bytes) * memory_.burst_bytes;
  const double moved = static_cast<double>(bytes) * static_cast<double>(bursts);
  const double setups = static_cast<double>(count) * static_cast<double>(memory_.setup_cycles);
  return moved / static_cast<double>(row) / rate_ +
         setups / static_cast<double>(memory_.dma_channels);
}

// Cycles that no walk is below: those of the busiest unit, of DRAM and of the channels, and with
// one buffer of copies and units one after the other. A little less, for what is rounded.
double Choice::least(const Extents& trips, const std::vector<TiledTraffic>& traffic) const {
  double bytes = 0, setups = 0;
  for (size_t o = 0; o < traffic.size(); ++o) {
    const TiledOperand& one = work_.operands[o];
    if (one.here || one.inside || one.bytes == 0) continue;
    // Of several cores each moves what it needs: together each tile at least once.
    int64_t once = 1;
    for (size_t axis = 0; axis < kAxes; ++axis) {
      if (has(one, static_cast<int>(axis))) once *= trips[axis];
    }
    const bool alone = machine_.cores == 1;
    bytes += static_cast<double>(alone ? traffic[o].moved_bytes : one.bytes);
    setups += static_cast<double>(alone ? traffic[o].transfers : once);
  }
  const Rates rates = rates_of(memory_);
  const auto in_bytes = [](int64_t rate) { return static_cast<double>(rate) * kTicks / kUnits; };
  const auto channels = static_cast<double>(memory_.dma_channels * machine_.cores);
  const double way = bytes / in_bytes(rates.dma);
  const double set_up = setups * static_cast<double>(memory_.setup_cycles);
  const double copying = std::max(bytes / in_bytes(rates.whole), (way + set_up) / channels);
  const double computing = std::max(array_ / machine_.array_share, vector_);
  const bool in_turn = !described_.double_buffer && machine_.cores == 1;
  const double all = in_turn ? copying + computing : std::max(copying, computing);
  const double copied_alone = bytes / memory_.dram_bytes_per_cycle;
  const double unhidden =
      machine_.cores == 1 ? overlapped(computing, copied_alone, machine_.overlap_p) : 0;
  return std::max(all, unhidden) * (1 - 1e-9) - 1;
}

// Ticks of a walk, or some above `most` where it takes more; more than any where there is none.
int64_t Choice::walked(const Tiling& tiling, const Assessed& assessed, int64_t most) const {
  Work work{.on_array = work_.on_array,
            .sizes = work_.sizes,
            .tile = tiling.tile,
            .loops = {kB, tiling.n_before_m ? kN : kM, tiling.n_before_m ? kM : kN, kK},
            .taps = work_.taps,
            .depthwise = work_.depthwise,
            .double_buffer = described_.double_buffer,
            .element_bytes = work_.element_bytes,
            .vector_rate = work_.vector_rate,
            .vector = work_.vector,
            .operands = {}};
  for (size_t o = 0; o < work_.operands.size(); ++o) {
    const TiledOperand& one = work_.operands[o];
    const TiledTraffic& traffic = assessed.operands[o];
    work.operands.push_back({one.axes, one.write, !one.here && !one.inside,
                             tiling.resident == static_cast<int>(o), traffic.moved_bytes,
                             traffic.row_bytes});
  }
  try {
    return walk(machine_, work, 0, true, most).ticks;
  } catch (const Error&) {
    return std::numeric_limits<int64_t>::max();
  }
}

}  // namespace

Assessed assess(const TiledMachine& machine, const TiledWork& work, const Tiling& tiling) {
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if (tiling.tile[axis] < 1 || tiling.tile[axis] > work.sizes[axis]) {
      throw Error(ErrorCode::kInput, "A tile has at least 1 along an axis, and at most all of it.");
    }
  }
  if (tiling.resident >= static_cast<int>(work.operands.size())) {
    throw Error(ErrorCode::kInput, "An operand that is kept whole is one of the work.");
  }
  return Choice(machine, work).assess(tiling);
}

std::optional<Tiling> choose_tiling(const TiledMachine& machine, const TiledWork& work) {
  return Choice(machine, work).best();
}

}  // namespace npusim::simulate
