#include "cpp/simulate/walk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim::simulate {
namespace {

constexpr int64_t kMostTiles = int64_t{1} << 24;
constexpr int64_t kUnknown = -1;
constexpr int kStreams = 3;  // x, w and copies
enum Axis { kB, kM, kN, kK };

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
int64_t ticks_of(double cycles) {
  return static_cast<int64_t>(std::ceil(cycles * kTicks));
}
int64_t rate_of(double bytes_per_cycle) {
  return std::max<int64_t>(1, static_cast<int64_t>(bytes_per_cycle * (kUnits / kTicks)));
}

struct Copy {
  int core, step, channel;
  bool write, by_dma;  // by_dma: its cap is the channel's, not DRAM's
  int64_t bytes, units, cap;
  int64_t starts = 0, ends = kUnknown;
};

struct Step {
  int64_t compute = 0, bank = 0, vector = 0;  // ticks
  int first_copy = 0, copies = 0;             // loads, in Core::loads
  int output = 0;                             // results that were finished before this step
  bool finishes = false;                      // the last of its results
  int64_t compute_end = kUnknown, vector_end = kUnknown;
  std::vector<int> stores;
};

struct Core {
  std::vector<Step> steps;
  std::vector<int> loads;         // copies
  std::vector<int> finishing;     // steps that finish results
  std::vector<int> last_in_lane;  // the copy before, by channel
  size_t known = 0;               // steps whose times are known
  int copies = 0;
};

struct Boundary {
  int64_t time;
  int cause, change;
};

class Walk {
 public:
  Walk(const Machine& machine, const Work& work, size_t timeline)
      : machine_(machine), work_(work), timeline_(timeline) {}

  Result run() {
    plan();
    order();
    flow();
    attribute();
    return std::move(result_);
  }

 private:
  void plan();
  void set_times(Step& step, const std::array<int64_t, 4>& extent);
  void order();
  void flow();
  int64_t ready(const Copy& copy);
  int64_t begin(const Copy& copy);
  void settle(Core& core, int index);
  int64_t results_gone(const Core& core, const Step& step) const;
  void mark(int cause, int64_t from, int64_t to);
  void show(int lane, int core, int64_t from, int64_t to);
  void attribute();
  std::array<int64_t, 4> extent(const std::array<int64_t, 4>& at) const;

  struct Moved {
    std::array<int64_t, 4> last{-1, -1, -1, -1};
    std::vector<bool> seen;
    __int128 volume = 0;
  };

  const Machine& machine_;
  const Work& work_;
  size_t timeline_;
  Result result_;
  std::vector<Core> cores_;
  std::vector<Copy> copies_;
  std::vector<std::vector<Copy>> step_loads_, step_stores_;  // by core * steps + step
  std::vector<Boundary> boundaries_;
};

std::array<int64_t, 4> Walk::extent(const std::array<int64_t, 4>& at) const {
  std::array<int64_t, 4> out;
  for (int a = 0; a < 4; ++a) {
    out[a] = std::min(work_.tile[a], work_.sizes[a] - at[a] * work_.tile[a]);
  }
  return out;
}

// What a tile keeps its units busy for.
void Walk::set_times(Step& step, const std::array<int64_t, 4>& size) {
  const Array& array = machine_.array;
  const Memory& memory = machine_.memory;
  const double whole = static_cast<double>(work_.sizes[kB]) * work_.sizes[kM] * work_.sizes[kN];
  const double part = static_cast<double>(size[kB]) * size[kM] * size[kN];
  double vector = 0;
  for (const VectorPass& pass : work_.vector) {
    vector += std::ceil(pass.elements * part / whole / work_.vector_rate) * pass.cycles;
  }
  if (!work_.on_array) {
    step.vector = ticks_of(vector);
    return;
  }
  Product product{size[kM], size[kN], size[kK]};
  int64_t repeats = work_.taps * size[kB];
  if (work_.depthwise) {  // columns share inputs, so that a channel uses one in a fold
    product = {size[kM], size[kN] * array.cols, work_.taps};
    repeats = 1;
  }
  step.compute =
      ticks_of(static_cast<double>(array_cycles(array, product, repeats)) / machine_.array_share);
  const Folds folds = array.dataflow->folds(product, array.rows, array.cols);
  const int64_t bytes = (folds.x + folds.w) * work_.element_bytes * repeats;
  result_.sram_bytes += bytes;
  const double sums =
      4.0 * static_cast<double>(folds.sums * repeats) / std::max(1.0, array.macs_per_cycle);
  const double needed = std::max(static_cast<double>(bytes) / memory.sram_bytes_per_cycle,
                                 sums / memory.acc_bytes_per_cycle);
  step.bank = std::max<int64_t>(0, ticks_of(needed) - step.compute);
  if (step.finishes) step.vector = ticks_of(vector);
}

void Walk::plan() {
  const auto& sizes = work_.sizes;
  std::array<int64_t, 4> trips;
  double count = 1;
  for (int a = 0; a < 4; ++a) {
    if (sizes[a] < 1 || work_.tile[a] < 1 || work_.tile[a] > sizes[a]) {
      throw Error(ErrorCode::kInput, "A tile has to be within sizes of at least 1.");
    }
    trips[a] = ceil_div(sizes[a], work_.tile[a]);
    count *= static_cast<double>(trips[a]);
  }
  if (count > static_cast<double>(kMostTiles)) {
    throw Error(ErrorCode::kInput, "A command of more than 2^24 tiles is not walked.");
  }
  cores_.resize(static_cast<size_t>(machine_.cores));
  for (Core& core : cores_) core.last_in_lane.assign(machine_.memory.dma_channels, kUnknown);
  // Cores take results in turn; what is summed over stays on one of them.
  std::vector<std::vector<std::array<int64_t, 4>>> places(cores_.size());
  std::array<int64_t, 4> at{};
  int64_t result = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) {
    places[static_cast<size_t>(result % machine_.cores)].push_back(at);
    if (at[kK] + 1 == trips[kK]) ++result;
    for (size_t l = work_.loops.size(); l-- > 0;) {
      const int axis = work_.loops[l];
      if (++at[axis] < trips[axis]) break;
      at[axis] = 0;
    }
  }
  std::vector<__int128> planned(work_.operands.size(), 0);
  struct Piece {
    size_t core, step, operand;
    __int128 volume;
    bool store;
  };
  std::vector<Piece> pieces;
  for (size_t c = 0; c < cores_.size(); ++c) {
    Core& core = cores_[c];
    std::vector<Moved> moved(work_.operands.size());
    for (size_t o = 0; o < moved.size(); ++o) {
      if (work_.operands[o].resident) moved[o].seen.assign(static_cast<size_t>(count), false);
    }
    const auto& mine = places[c];
    core.steps.resize(mine.size());
    int finished = 0;
    for (size_t s = 0; s < mine.size(); ++s) {
      Step& step = core.steps[s];
      const auto size = extent(mine[s]);
      step.output = finished;
      step.finishes = mine[s][kK] + 1 == trips[kK];
      if (step.finishes) {
        core.finishing.push_back(static_cast<int>(s));
        ++finished;
      }
      set_times(step, size);
      for (size_t o = 0; o < work_.operands.size(); ++o) {
        const Operand& operand = work_.operands[o];
        if (!operand.moved) continue;
        const size_t other = operand.write ? s + 1 : s - 1;
        bool same = operand.write ? other < mine.size() : s > 0;
        __int128 volume = 1;
        size_t place = 0;
        for (int a = 0; a < 4; ++a) {
          if (!(operand.axes >> a & 1)) continue;
          volume *= size[a];
          place = place * static_cast<size_t>(trips[a]) + static_cast<size_t>(mine[s][a]);
          same = same && mine[other][a] == mine[s][a];
        }
        if (operand.resident && !same) {
          same = moved[o].seen[place];
          moved[o].seen[place] = true;
        }
        if (same) continue;
        planned[o] += volume;
        pieces.push_back({c, s, o, volume, operand.write});
      }
    }
  }
  // Bytes in proportion to volume; what is cut off a tile goes to the next one.
  const int64_t steps = cores_.empty() ? 0 : static_cast<int64_t>(cores_[0].steps.size());
  step_loads_.resize(cores_.size() * static_cast<size_t>(steps));
  step_stores_.resize(step_loads_.size());
  std::vector<__int128> done(work_.operands.size(), 0);
  const Memory& memory = machine_.memory;
  const int64_t channel_rate =
      std::max<int64_t>(1, rate_of(memory.dram_bytes_per_cycle) / memory.dram_channels);
  for (const Piece& piece : pieces) {
    const Operand& operand = work_.operands[piece.operand];
    const __int128 before = done[piece.operand] * operand.total_bytes / planned[piece.operand];
    done[piece.operand] += piece.volume;
    const auto bytes = static_cast<int64_t>(
        done[piece.operand] * operand.total_bytes / planned[piece.operand] - before);
    if (bytes == 0) continue;
    const int64_t row = std::clamp<int64_t>(operand.row_bytes, 1, bytes);
    const int64_t bursts = ceil_div(bytes, row) * ceil_div(row, memory.burst_bytes);
    const int64_t touched =
        std::min(memory.dram_channels, ceil_div(bytes, memory.interleave_bytes));
    const int64_t dma =
        std::min(rate_of(memory.dma_bytes_per_cycle), rate_of(memory.sram_bytes_per_cycle));
    const Copy copy{.core = static_cast<int>(piece.core),
                    .step = static_cast<int>(piece.step),
                    .channel = 0,
                    .write = piece.store,
                    .by_dma = dma <= touched * channel_rate,
                    .bytes = bytes,
                    .units = bursts * memory.burst_bytes * kUnits,
                    .cap = std::min(dma, touched * channel_rate)};
    auto& list = piece.store ? step_stores_ : step_loads_;
    list[piece.core * static_cast<size_t>(steps) + piece.step].push_back(copy);
    (piece.store ? result_.dram_written : result_.dram_read) += bytes;
    if (memory.sram_bytes_per_cycle > 0) result_.sram_bytes += bytes;
    Step& step = cores_[piece.core].steps[piece.step];
    if (work_.on_array && memory.sram_accesses < kStreams) {  // copies take turns with the array
      step.bank += ticks_of(static_cast<double>(bytes) / memory.sram_bytes_per_cycle);
    }
  }
}

// Invariant 1: the loads of a tile stand before the results of the tile whose buffer they take.
void Walk::order() {
  const size_t steps = cores_.empty() ? 0 : cores_[0].steps.size();
  const size_t behind = work_.double_buffer ? 2 : 0;
  auto add = [&](size_t c, std::vector<Copy>& from, bool stores) {
    Core& core = cores_[c];
    for (Copy& copy : from) {
      copy.channel = core.copies++ % static_cast<int>(machine_.memory.dma_channels);
      Step& step = core.steps[static_cast<size_t>(copy.step)];
      const int index = static_cast<int>(copies_.size());
      if (stores) {
        step.stores.push_back(index);
      } else {
        if (step.copies++ == 0) step.first_copy = static_cast<int>(core.loads.size());
        core.loads.push_back(index);
      }
      copies_.push_back(copy);
    }
  };
  for (size_t s = 0; s < steps + behind; ++s) {
    for (size_t c = 0; c < cores_.size(); ++c) {
      if (s < cores_[c].steps.size()) add(c, step_loads_[c * steps + s], false);
    }
    for (size_t c = 0; c < cores_.size(); ++c) {
      if (s >= behind && s - behind < cores_[c].steps.size()) {
        add(c, step_stores_[c * steps + s - behind], true);
      }
    }
  }
}

// When the results have left whose place this step's take; kUnknown where that is not known.
int64_t Walk::results_gone(const Core& core, const Step& step) const {
  const int before = step.output - (work_.double_buffer ? 2 : 1);
  if (before < 0) return 0;
  const Step& other = core.steps[static_cast<size_t>(core.finishing[static_cast<size_t>(before)])];
  int64_t gone = other.vector_end;
  for (const int store : other.stores) {
    const int64_t end = copies_[static_cast<size_t>(store)].ends;
    if (end == kUnknown) return kUnknown;
    gone = std::max(gone, end);
  }
  return gone;
}

// Fixes the times of a core's steps, in order, up to one, as far as they are known.
void Walk::settle(Core& core, int index) {
  while (core.known <= static_cast<size_t>(index) && core.known < core.steps.size()) {
    Step& step = core.steps[core.known];
    int64_t start = results_gone(core, step);
    if (start == kUnknown) return;
    for (int i = 0; i < step.copies; ++i) {
      const int copy = core.loads[static_cast<size_t>(step.first_copy + i)];
      const int64_t end = copies_[static_cast<size_t>(copy)].ends;
      if (end == kUnknown) return;
      start = std::max(start, end);
    }
    int64_t vector_free = 0;
    if (core.known > 0) {
      start = std::max(start, core.steps[core.known - 1].compute_end);
      vector_free = core.steps[core.known - 1].vector_end;
    }
    const int number = static_cast<int>(&core - cores_.data());
    const int64_t computed = start + step.compute;
    step.compute_end = computed + step.bank;
    const int64_t vector = std::max(step.compute_end, vector_free);
    step.vector_end = vector + step.vector;
    if (!work_.on_array) step.compute_end = step.vector_end;
    mark(kCompute, start, computed);
    mark(kBank, computed, computed + step.bank);
    mark(kVector, vector, step.vector_end);
    show(0, number, start, computed + step.bank);
    show(1, number, vector, step.vector_end);
    result_.array_ticks += step.compute + step.bank;
    result_.vector_ticks += step.vector;
    result_.ticks = std::max(result_.ticks, step.vector_end);
    ++core.known;
  }
}

// When a copy's place in the memory, or what it writes, is there.
int64_t Walk::ready(const Copy& copy) {
  Core& core = cores_[static_cast<size_t>(copy.core)];
  const int before = copy.write ? copy.step : copy.step - (work_.double_buffer ? 2 : 1);
  if (before < 0) return 0;
  settle(core, before);
  if (core.known <= static_cast<size_t>(before)) return kUnknown;
  const Step& step = core.steps[static_cast<size_t>(before)];
  if (copy.write) return step.vector_end;
  int64_t time = work_.on_array && work_.double_buffer ? step.compute_end : step.vector_end;
  if (work_.double_buffer) return time;
  for (const int store : step.stores) {
    const int64_t end = copies_[static_cast<size_t>(store)].ends;
    if (end == kUnknown) return kUnknown;
    time = std::max(time, end);
  }
  return time;
}

// When a copy's channel begins with it; kUnknown where that is not known yet.
int64_t Walk::begin(const Copy& copy) {
  const Core& core = cores_[static_cast<size_t>(copy.core)];
  const int last = core.last_in_lane[static_cast<size_t>(copy.channel)];
  const int64_t free = last == kUnknown ? 0 : copies_[static_cast<size_t>(last)].ends;
  const int64_t there = ready(copy);
  return free == kUnknown || there == kUnknown ? kUnknown : std::max(free, there);
}

void Walk::flow() {
  const Memory& memory = machine_.memory;
  const int64_t per_channel =
      std::max<int64_t>(1, rate_of(memory.dram_bytes_per_cycle) / memory.dram_channels);
  const int64_t dram = per_channel * memory.dram_channels;
  const bool by_noc = memory.noc_bytes_per_cycle > 0 && rate_of(memory.noc_bytes_per_cycle) < dram;
  const int64_t whole = by_noc ? rate_of(memory.noc_bytes_per_cycle) : dram;
  struct Flow {
    size_t copy;
    int64_t left, rate, since;
    Cause cause;
  };
  std::vector<Flow> flows;  // in order
  auto cause_of = [&](const Copy& copy, int64_t rate) {
    if (rate < copy.cap) return by_noc ? kNoc : kDram;
    return copy.by_dma ? kDma : kDram;
  };
  int64_t now = 0;
  auto share = [&] {
    int64_t left = whole;
    for (Flow& flow : flows) {
      const Copy& copy = copies_[flow.copy];
      const int64_t rate = std::min(copy.cap, left);
      const Cause cause = cause_of(copy, rate);
      if (cause != flow.cause) {
        mark(flow.cause, flow.since, now);
        flow.since = now;
      }
      flow.rate = rate;
      flow.cause = cause;
      left -= rate;
    }
  };
  size_t next = 0;
  int64_t start = kUnknown;  // when the next one flows
  while (next < copies_.size() || !flows.empty()) {
    if (next < copies_.size() && start == kUnknown) {
      Copy& copy = copies_[next];
      const int64_t from = begin(copy);
      if (from != kUnknown) {
        Core& core = cores_[static_cast<size_t>(copy.core)];
        const int64_t set = from + memory.setup_cycles * kTicks;
        const int64_t hops = set + memory.hop_cycles * kTicks;
        const int64_t there = hops + (copy.write ? memory.write_latency : memory.read_latency);
        start = std::max(there, now);  // invariant 1: none flows before the one ahead of it
        mark(kDma, from, set);
        mark(kNoc, set, hops);
        mark(kDram, hops, start);
        copy.starts = from;
        core.last_in_lane[static_cast<size_t>(copy.channel)] = static_cast<int>(next);
      }
    }
    int64_t end = std::numeric_limits<int64_t>::max();
    for (const Flow& flow : flows) {
      if (flow.rate > 0) end = std::min(end, now + ceil_div(flow.left, flow.rate));
    }
    const bool starts = start != kUnknown && start <= end;
    if (!starts && flows.empty()) throw Error(ErrorCode::kInput, "Tiles wait for each other.");
    const int64_t then = starts ? start : end;
    for (Flow& flow : flows) flow.left -= std::min(flow.left, flow.rate * (then - now));
    now = then;
    std::erase_if(flows, [&](const Flow& flow) {
      if (flow.left > 0) return false;
      Copy& copy = copies_[flow.copy];
      copy.ends = now;
      mark(flow.cause, flow.since, now);
      show(2 + copy.channel, copy.core, copy.starts, now);
      result_.ticks = std::max(result_.ticks, now);
      return true;
    });
    if (starts) {
      flows.push_back({next, copies_[next].units, 0, now, kDram});
      ++next;
      start = kUnknown;
    }
    share();
  }
  for (Core& core : cores_) settle(core, static_cast<int>(core.steps.size()) - 1);
  for (const Core& core : cores_) {
    result_.tiles += static_cast<int64_t>(core.steps.size());
    if (core.known != core.steps.size()) throw Error(ErrorCode::kInput, "Tiles wait for ever.");
  }
  result_.copies = static_cast<int64_t>(copies_.size());
}

void Walk::mark(int cause, int64_t from, int64_t to) {
  if (from >= to) return;
  boundaries_.push_back({from, cause, 1});
  boundaries_.push_back({to, cause, -1});
}

void Walk::show(int lane, int core, int64_t from, int64_t to) {
  if (from >= to) return;
  ++result_.events;
  if (result_.timeline.size() < timeline_) result_.timeline.push_back({lane, core, from, to});
}

// Gives every interval to the first cause, in the order of Cause, that is at work in it.
void Walk::attribute() {
  std::sort(boundaries_.begin(), boundaries_.end(),
            [](const Boundary& a, const Boundary& b) { return a.time < b.time; });
  std::array<int64_t, kCauses> active{};
  int64_t since = 0;
  auto give = [&](int64_t until) {
    int cause = 0;
    while (cause < kDependency && active[static_cast<size_t>(cause)] == 0) ++cause;
    result_.causes[static_cast<size_t>(cause)] += until - since;
    since = until;
  };
  for (const Boundary& one : boundaries_) {
    if (one.time > since) give(one.time);
    active[static_cast<size_t>(one.cause)] += one.change;
  }
  give(result_.ticks);
  if (machine_.cores > 1) {
    const int64_t sync = machine_.sync_cycles * kTicks;
    result_.ticks += sync;
    result_.causes[kDependency] += sync;
  }
}

}  // namespace

Result walk(const Machine& machine, const Work& work, size_t timeline) {
  return Walk(machine, work, timeline).run();
}

}  // namespace npusim::simulate
