#include "cpp/simulate/walk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "cpp/runtime/error.h"
#include "cpp/simulate/attribution.h"
#include "cpp/simulate/steady_state.h"
#include "cpp/simulate/tile_sequence.h"
#include "cpp/simulate/timeline.h"

namespace npusim::simulate {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int kStreams = 3;     // x, w and copies
constexpr int64_t kWindow = 4;  // steps and results of a core that are known: the last ones

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
int64_t rate_of(double bytes_per_cycle) {
  constexpr double kMost = 1e12;
  const double rate = std::min(bytes_per_cycle, kMost) * (kUnits / kTicks);
  return std::max<int64_t>(1, static_cast<int64_t>(rate));
}

struct Step {
  TileTimes times;
  uint64_t loads = 0, stores = 0;  // bits of operands
  bool finishes = false;           // the last of its result
  int64_t loaded = 0, stored = 0;  // when the last of its copies has ended
  int64_t compute_end = 0, vector_end = 0;
};

struct Output {
  int64_t vector_end = 0, stored = 0;
};

struct Core {
  std::array<Step, kWindow> steps;
  std::array<Output, kWindow> outputs;
  std::vector<int64_t> free;  // by channel: when its last copy ended
  int64_t copies = 0, known = 0;
  int64_t computed = 0, passed = 0;  // when the last known step has left the units
};

// Steps and results have the numbers that they have in this walk; `skipped_` steps and
// `skipped_results_` more lie before them.
class Walk {
 public:
  Walk(const Machine& machine, const Work& work, size_t timeline, bool shortcut);
  Result run(int64_t most);

 private:
  // ---- steps
  Step& step(Core& core, int64_t index) const { return core.steps[place_of(index)]; }
  const Step& step(const Core& core, int64_t index) const { return core.steps[place_of(index)]; }
  Output& output(Core& core, int64_t result) const { return core.outputs[place_of(result)]; }
  static size_t place_of(int64_t index) { return static_cast<size_t>(index % kWindow); }
  int64_t steps(size_t core) const { return tiles_.steps(static_cast<int>(core)) - skipped_; }
  int64_t result_of(int64_t index) const {
    return (index + skipped_) / tiles_.sums() - skipped_results_;
  }
  void make(size_t core, int64_t index);
  void settle(size_t core, int64_t index);
  // ---- copies
  void load(size_t core, int64_t index);
  void store(size_t core, int64_t index);
  int64_t copy(size_t core, int64_t index, size_t operand, int64_t ready, bool write);
  // ---- periods
  void enter_slot();
  int64_t horizon() const;
  Moment moment(int64_t oldest) const;
  void describe(std::vector<int64_t>& state) const;
  void repeat(const SteadyState& found, const Moment& now, int64_t times);

  const Machine& machine_;
  const Work& work_;
  TileSequence tiles_;
  const int64_t buffers_;  // of a tile
  const int64_t behind_;   // slots that results come after loads
  Result result_;
  Attribution due_;
  Timeline timeline_;
  std::vector<SteadyState> levels_;
  std::vector<Core> cores_;
  std::vector<__int128> elements_;  // that were moved of each operand
  const Rates rates_;
  int64_t issued_ = 0;  // when the last copy was begun, or before which none is
  int64_t served_ = 0;  // when DRAM is through with all copies
  int64_t last_ = 0;
  int64_t slot_ = 0, slots_ = 0;
  int64_t skipped_ = 0, skipped_results_ = 0, skipped_time_ = 0;
};

Walk::Walk(const Machine& machine, const Work& work, size_t timeline, bool shortcut)
    : machine_(machine),
      work_(work),
      tiles_(machine, work),
      buffers_(work.double_buffer ? 2 : 1),
      behind_(work.double_buffer ? 2 : 0),
      timeline_(machine.cores, 2 + machine.memory.dma_channels, timeline),
      cores_(static_cast<size_t>(machine.cores)),
      elements_(work.operands.size(), 0),
      rates_(rates_of(machine.memory)) {
  for (Core& core : cores_) core.free.assign(static_cast<size_t>(machine.memory.dma_channels), 0);
  slots_ = tiles_.steps(0) + behind_;  // no core has more
  if (!shortcut) return;
  for (const Level& level : tiles_.levels()) levels_.emplace_back(tiles_, level);
}

Result Walk::run(int64_t most) {
  // The whole ends no sooner than any copy or tile that has ended.
  for (; slot_ < slots_ && last_ <= most - skipped_time_; ++slot_) {
    enter_slot();
    const auto each = [&](int64_t index, void (Walk::*action)(size_t, int64_t)) {
      for (size_t c = 0; c < cores_.size(); ++c) {
        if (index >= 0 && index < steps(c)) (this->*action)(c, index);
      }
    };
    each(slot_, &Walk::make);
    each(slot_, &Walk::load);
    if (!work_.double_buffer) each(slot_, &Walk::settle);
    each(slot_ - behind_, &Walk::store);
    if (work_.double_buffer) each(slot_, &Walk::settle);
  }
  for (const Core& core : cores_) result_.walked += core.known;
  due_.settle(last_);
  for (size_t cause = 0; cause < kCauses; ++cause) result_.causes[cause] += due_.causes()[cause];
  result_.ticks = last_ + skipped_time_;
  for (size_t o = 0; o < elements_.size(); ++o) {
    const int64_t bytes = tiles_.moved(o, elements_[o]);
    (work_.operands[o].write ? result_.dram_written : result_.dram_read) += bytes;
    result_.sram_bytes += bytes;
  }
  if (machine_.cores > 1) {
    const int64_t sync = machine_.sync_cycles * kTicks;
    result_.ticks += sync;
    result_.causes[kDependency] += sync;
  }
  result_.tiles = tiles_.tiles();
  result_.events = timeline_.events();
  result_.timeline = timeline_.intervals();
  return std::move(result_);
}

// ---- steps

void Walk::make(size_t core, int64_t index) {
  const Memory& memory = machine_.memory;
  const int number = static_cast<int>(core);
  const int64_t place = index + skipped_;
  const Place at = tiles_.place(number, place);
  Step made;
  made.times = tiles_.times(at);
  made.loads = tiles_.loads(number, place);
  made.stores = tiles_.stores(number, place);
  made.finishes = (place + 1) % tiles_.sums() == 0;
  if (work_.on_array && memory.sram_accesses < kStreams) {  // copies take turns with the array
    for (uint64_t left = made.loads | made.stores; left; left &= left - 1) {
      const auto operand = static_cast<size_t>(std::countr_zero(left));
      made.times.bank +=
          ticks_of(static_cast<double>(tiles_.bytes(at, operand)) / memory.sram_bytes_per_cycle);
    }
  }
  if (work_.on_array && !made.finishes) made.times.vector = 0;
  step(cores_[core], index) = made;
}

// Fixes the times of a core's next step, whose operands are there.
void Walk::settle(size_t number, int64_t index) {
  Core& core = cores_[number];
  Step& one = step(core, index);
  int64_t start = std::max(one.loaded, core.computed);
  const int64_t result = result_of(index), before = result - buffers_;
  if (before + skipped_results_ >= 0) {
    const Output& gone = output(core, before);
    start = std::max({start, gone.vector_end, gone.stored});
  }
  const int64_t computed = start + one.times.compute;
  one.compute_end = computed + one.times.bank;
  const int64_t vector = std::max(one.compute_end, core.passed);
  one.vector_end = vector + one.times.vector;
  if (!work_.on_array) one.compute_end = one.vector_end;
  if (one.finishes) output(core, result) = {one.vector_end, 0};
  core.computed = one.compute_end;
  core.passed = one.vector_end;
  due_.mark(kCompute, start, computed);
  due_.mark(kBank, computed, computed + one.times.bank);
  due_.mark(kVector, vector, one.vector_end);
  const int id = static_cast<int>(number);
  timeline_.add(0, id, start + skipped_time_, computed + one.times.bank + skipped_time_);
  timeline_.add(1, id, vector + skipped_time_, one.vector_end + skipped_time_);
  result_.array_ticks += one.times.compute + one.times.bank;
  result_.vector_ticks += one.times.vector;
  result_.sram_bytes += one.times.sram_bytes;
  last_ = std::max(last_, one.vector_end);
  if (last_ > kLongest) throw Error(ErrorCode::kInput, "A command takes longer than is counted.");
  ++core.known;
}

// ---- copies

// Copies what a step needs, when the tile whose place it takes has left.
void Walk::load(size_t number, int64_t index) {
  Core& core = cores_[number];
  int64_t ready = 0;
  if (index + skipped_ >= buffers_) {
    const Step& gone = step(core, index - buffers_);
    const bool array = work_.double_buffer && work_.on_array;
    ready = array ? gone.compute_end : gone.vector_end;
    if (!work_.double_buffer) ready = std::max(ready, gone.stored);
  }
  Step& one = step(core, index);
  for (uint64_t left = one.loads; left; left &= left - 1) {
    const auto operand = static_cast<size_t>(std::countr_zero(left));
    one.loaded = std::max(one.loaded, copy(number, index, operand, ready, false));
  }
}

void Walk::store(size_t number, int64_t index) {
  Step& one = step(cores_[number], index);
  for (uint64_t left = one.stores; left; left &= left - 1) {
    const auto operand = static_cast<size_t>(std::countr_zero(left));
    one.stored = std::max(one.stored, copy(number, index, operand, one.vector_end, true));
  }
  if (one.finishes) output(cores_[number], result_of(index)).stored = one.stored;
}

// Sets a copy up once it may be, and returns when it ends: no sooner than its own way takes, nor
// than DRAM is through with all copies up to it.
int64_t Walk::copy(size_t number, int64_t index, size_t operand, int64_t ready, bool write) {
  const Memory& memory = machine_.memory;
  Core& core = cores_[number];
  const Place at = tiles_.place(static_cast<int>(number), index + skipped_);
  const int64_t bytes = tiles_.bytes(at, operand);
  elements_[operand] += tiles_.volume(at, operand);
  const int64_t row = std::clamp<int64_t>(work_.operands[operand].row_bytes, 1, bytes);
  const int64_t bursts = ceil_div(bytes, row) * ceil_div(row, memory.burst_bytes);
  const __int128 asked = static_cast<__int128>(bursts) * memory.burst_bytes * kUnits;
  if (asked > std::numeric_limits<int64_t>::max() / 2) {
    throw Error(ErrorCode::kInput, "A copy of so many bytes is not walked.");
  }
  const auto units = static_cast<int64_t>(asked);
  const int64_t touched = std::min(memory.dram_channels, ceil_div(bytes, memory.interleave_bytes));
  const int64_t dram = rates_.per_channel * touched, dma = rates_.dma;
  const auto channel = static_cast<size_t>(core.copies++ % memory.dma_channels);
  const int64_t setups = tiles_.setups(at, operand, ceil_div(bytes, row));

  const int64_t begun = std::max({core.free[channel], ready, issued_});
  const int64_t set = begun + setups * memory.setup_cycles * kTicks;
  const int64_t hopped = set + memory.hops[number] * memory.hop_cycles * kTicks;
  const int64_t start = hopped + (write ? memory.write_latency : memory.read_latency);
  const int64_t alone = start + ceil_div(units, std::min(dma, dram));
  served_ = std::max(served_, start) + ceil_div(units, rates_.whole);
  const int64_t end = std::max(alone, served_);
  if (end > kLongest) throw Error(ErrorCode::kInput, "A command takes longer than is counted.");

  due_.mark(kDma, begun, set);
  due_.mark(kNoc, set, hopped);
  due_.mark(kDram, hopped, start);
  const bool shared = served_ > alone;
  due_.mark(shared ? (rates_.by_noc ? kNoc : kDram) : (dma <= dram ? kDma : kDram), start, end);
  timeline_.add(2 + static_cast<int>(channel), static_cast<int>(number), begun + skipped_time_,
                end + skipped_time_);
  result_.hop_bytes += bytes * memory.hops[number];
  ++result_.copies;
  core.free[channel] = end;
  issued_ = begun;
  last_ = std::max(last_, end);
  return end;
}

// ---- periods

// Begins a slot, or the one that follows whole periods.
void Walk::enter_slot() {
  int64_t left = kNever;  // when the first of the tiles has left whose places are taken next
  for (size_t c = 0; c < cores_.size(); ++c) {
    const int64_t before = std::min(slot_ - buffers_, steps(c) - 1);
    if (steps(c) > 0) left = std::min(left, before < 0 ? 0 : step(cores_[c], before).compute_end);
  }
  if (left != kNever) issued_ = std::max(issued_, left);
  due_.settle(horizon());
  for (SteadyState& level : levels_) {
    const int64_t now = slot_ + skipped_;
    const int64_t oldest = std::max<int64_t>(0, slot_ - 2) + skipped_;
    if (!level.wants(now, oldest, now)) continue;
    const Moment here = moment(oldest);
    const int64_t times = level.repeats(here, now);
    if (times > 0) {
      repeat(level, here, times);
      level.forget();
    }
  }
}

// Before which nothing is marked any more: copies begin in order, and steps behind one another.
int64_t Walk::horizon() const {
  int64_t out = issued_;
  for (size_t c = 0; c < cores_.size(); ++c) {
    if (cores_[c].known < steps(c)) out = std::min(out, cores_[c].computed);
  }
  return out;
}

Moment Walk::moment(int64_t oldest) const {
  Moment out{.step = slot_ + skipped_,
             .oldest = oldest,
             .time = issued_ + skipped_time_,
             .state = {},
             .counts = {},
             .timeline = timeline_.mark()};
  describe(out.state);
  for (size_t cause = 0; cause < kCauses; ++cause) {
    out.counts.push_back(result_.causes[cause] + due_.causes()[cause]);
  }
  for (const int64_t count : {result_.copies, result_.hop_bytes, result_.sram_bytes,
                              result_.array_ticks, result_.vector_ticks}) {
    out.counts.push_back(count);
  }
  out.counts.insert(out.counts.end(), elements_.begin(), elements_.end());
  return out;
}

// All that what follows depends on, relative to the time before which no copy begins. What ended
// before that, where it only holds copies up, counts as ending then.
void Walk::describe(std::vector<int64_t>& state) const {
  state.push_back(std::max(served_, issued_) - issued_);
  const int64_t result = result_of(slot_);
  const auto since = [&](int64_t end) { return end ? end - issued_ : kNever; };
  for (const Core& core : cores_) {
    state.insert(state.end(), {core.computed - issued_, core.passed - issued_,
                               core.copies % machine_.memory.dma_channels});
    for (const int64_t free : core.free) state.push_back(std::max(free, issued_) - issued_);
    for (int64_t index = std::max<int64_t>(0, slot_ - 2); index < slot_; ++index) {
      const Step& one = step(core, index);
      state.insert(state.end(), {static_cast<int64_t>(one.stores), one.compute_end - issued_,
                                 one.vector_end - issued_, since(one.stored)});
    }
    for (int64_t at = std::max<int64_t>(0, result - 2); at < result; ++at) {
      const Output& one = core.outputs[place_of(at)];
      state.insert(state.end(), {one.vector_end - issued_, since(one.stored)});
    }
  }
  due_.describe(issued_, state);
}

// Counts the time since an earlier moment, whose state is that of now, some times more.
void Walk::repeat(const SteadyState& found, const Moment& now, int64_t times) {
  const Moment& before = found.before();
  size_t at = 0;
  const auto more = [&] {
    const __int128 one = now.counts[at] - before.counts[at];
    ++at;
    return one * times;
  };
  for (size_t cause = 0; cause < kCauses; ++cause) {
    result_.causes[cause] += static_cast<int64_t>(more());
  }
  for (int64_t* count : {&result_.copies, &result_.hop_bytes, &result_.sram_bytes,
                         &result_.array_ticks, &result_.vector_ticks}) {
    *count += static_cast<int64_t>(more());
  }
  for (__int128& elements : elements_) elements += more();
  const int64_t steps = (now.step - before.step) * times;
  skipped_ += steps;
  const __int128 longer = static_cast<__int128>(now.time - before.time) * times;
  if (skipped_time_ + longer > kLongest) {
    throw Error(ErrorCode::kInput, "A command takes longer than is counted.");
  }
  skipped_time_ += static_cast<int64_t>(longer);
  timeline_.repeat(before.timeline, now.time, now.time - before.time, times);
  slots_ -= steps;
  if (found.level().results) skipped_results_ += steps / tiles_.sums();
}

// Machine::overlap_p.
void add_unhidden(const Machine& machine, Result& result) {
  const auto computed = static_cast<double>(result.array_ticks + result.vector_ticks) /
                        static_cast<double>(machine.cores);
  const double copied = static_cast<double>(result.dram_read + result.dram_written) /
                        machine.memory.dram_bytes_per_cycle * static_cast<double>(kTicks);
  const double least = std::ceil(overlapped(computed, copied, machine.overlap_p));
  if (least > static_cast<double>(kLongest)) {
    throw Error(ErrorCode::kInput, "A command takes longer than is counted.");
  }
  const int64_t missing = std::max<int64_t>(0, static_cast<int64_t>(least) - result.ticks);
  result.causes[kDependency] += missing;
  result.ticks += missing;
}

}  // namespace

double overlapped(double one, double other, double p) {
  const double most = std::max(one, other);
  if (std::isinf(p) || most == 0) return most;
  return most * std::pow(std::pow(one / most, p) + std::pow(other / most, p), 1 / p);
}

Rates rates_of(const Memory& memory) {
  Rates out{};
  const int64_t most = rate_of(memory.dram_bytes_per_cycle);
  out.per_channel = std::max<int64_t>(1, most / memory.dram_channels);
  out.whole = out.per_channel * memory.dram_channels;
  out.by_noc = memory.noc_bytes_per_cycle > 0 && rate_of(memory.noc_bytes_per_cycle) < out.whole;
  if (out.by_noc) out.whole = rate_of(memory.noc_bytes_per_cycle);
  out.dma = std::min(rate_of(memory.dma_bytes_per_cycle), rate_of(memory.sram_bytes_per_cycle));
  return out;
}

void check_rates(const Memory& memory) {
  const auto channels = static_cast<double>(std::max<int64_t>(1, memory.dram_channels));
  const std::pair<const char*, double> rates[] = {
      {"each channel of DRAM", memory.dram_bytes_per_cycle / channels},
      {"a channel of DMA", memory.dma_bytes_per_cycle},
      {"the memory on the chip", memory.sram_bytes_per_cycle},
      {"the network", memory.noc_bytes_per_cycle == 0 ? kLeastRate : memory.noc_bytes_per_cycle},
  };
  for (const auto& [where, rate] : rates) {
    if (rate >= kLeastRate) continue;  // a NaN is refused, too
    std::ostringstream text;
    text << "A machine's rates are at least 1/16 byte a cycle; " << where << " has " << rate << ".";
    throw Error(ErrorCode::kInput, text.str());
  }
}

Result walk(const Machine& machine, const Work& work, size_t timeline, bool shortcut,
            int64_t most) {
  Result result = Walk(machine, work, timeline, shortcut).run(most);
  if (!std::isinf(machine.overlap_p)) add_unhidden(machine, result);
  return result;
}

}  // namespace npusim::simulate
