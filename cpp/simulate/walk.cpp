#include "cpp/simulate/walk.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <limits>
#include <utility>

#include "cpp/runtime/error.h"
#include "cpp/simulate/attribution.h"
#include "cpp/simulate/steady_state.h"
#include "cpp/simulate/tile_sequence.h"
#include "cpp/simulate/timeline.h"

namespace npusim::simulate {
namespace {

constexpr int64_t kUnknown = -1;
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int kStreams = 3;     // x, w and copies
constexpr int64_t kAhead = 16;  // steps that are settled before their slot is reached

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
int64_t rate_of(double bytes_per_cycle) {
  constexpr double kMost = 1e12;
  const double rate = std::min(bytes_per_cycle, kMost) * (kUnits / kTicks);
  return std::max<int64_t>(1, static_cast<int64_t>(rate));
}

// What a copy leaves of itself: tiles wait for the last end of those that are theirs.
struct Waited {
  int left = 0;
  int64_t end = 0;
  void ended(int64_t now) {
    --left;
    end = std::max(end, now);
  }
};

struct Step {
  TileTimes times;
  uint64_t loads = 0, stores = 0;  // bits of operands
  Waited loaded, stored;
  bool finishes = false;  // the last of its result
  int64_t compute_end = 0, vector_end = 0;
};

struct Output {
  int64_t vector_end = 0;
  Waited stored;
};

struct Core {
  std::deque<Step> steps;        // from `first` on
  int64_t first = 0, known = 0;  // known: steps whose times are fixed
  std::deque<Output> outputs;    // from `first_output` on
  int64_t first_output = 0;
  std::vector<int64_t> free;  // by channel: when its last copy ended
  int64_t copies = 0;
  int64_t computed = 0, passed = 0;  // when the last known step has left the units
};

struct Copy {
  size_t core = 0;
  int64_t step = 0;
  size_t channel = 0;
  bool write = false, by_dma = false;  // by_dma: its cap is the channel's, not DRAM's
  int64_t units = 0, cap = 0;
  int64_t setups = 1;
  int64_t begun = 0;
};

struct Flow {
  Copy copy;
  int64_t left = 0, rate = 0;
  int cause = kUnknown;
};

// Steps have the numbers that they have in this walk; `skipped_` more lie before them.
class Walk {
 public:
  Walk(const Machine& machine, const Work& work, size_t timeline, bool shortcut);
  Result run();

 private:
  // ---- what is in order
  bool next(Copy& copy);
  void enter_slot();
  Copy make_copy(size_t core, int64_t step, size_t operand, bool write);
  // ---- steps
  Step& step(size_t core, int64_t index);
  Output& output(Core& core, int64_t index) {
    return core.outputs[static_cast<size_t>(index - core.first_output)];
  }
  int64_t steps(size_t core) const { return tiles_.steps(static_cast<int>(core)) - skipped_; }
  bool settle_one(size_t core);
  int64_t horizon() const;
  void pass_idle_time();
  void settle(size_t core);
  void forget(Core& core);
  // ---- copies
  int64_t ready(const Copy& copy);
  int64_t begin(const Copy& copy);
  int64_t issue(Copy& copy, int64_t from);
  void flow_until(int64_t then);
  void finish(const Flow& flow);
  void share();
  // ---- periods
  Moment moment(int64_t oldest) const;
  void describe(std::vector<int64_t>& state) const;
  void repeat(const SteadyState& found, const Moment& now, int64_t times);

  const Machine& machine_;
  const Work& work_;
  TileSequence tiles_;
  const int64_t behind_;  // slots that results come after loads
  Result result_;
  Attribution due_;
  Timeline timeline_;
  std::vector<SteadyState> levels_;
  std::vector<Core> cores_;
  std::vector<Flow> flows_;         // in order
  std::vector<__int128> elements_;  // that were moved of each operand
  int64_t whole_, per_channel_;     // rates of DRAM, or of the network before it
  bool by_noc_;
  int64_t now_ = 0, issued_ = 0, last_ = 0;
  int64_t skipped_ = 0, skipped_time_ = 0;
  // The place in the order: loads of step `slot_` of all cores, then results of some steps before.
  int64_t slot_ = 0, slots_ = 0;
  size_t core_ = 0;
  bool storing_ = false;
  uint64_t operands_ = 0;
};

Walk::Walk(const Machine& machine, const Work& work, size_t timeline, bool shortcut)
    : machine_(machine),
      work_(work),
      tiles_(machine, work),
      behind_(work.double_buffer ? 2 : 0),
      timeline_(machine.cores, 2 + machine.memory.dma_channels, timeline),
      cores_(static_cast<size_t>(machine.cores)),
      elements_(work.operands.size(), 0) {
  const Memory& memory = machine.memory;
  per_channel_ = std::max<int64_t>(1, rate_of(memory.dram_bytes_per_cycle) / memory.dram_channels);
  const int64_t dram = per_channel_ * memory.dram_channels;
  by_noc_ = memory.noc_bytes_per_cycle > 0 && rate_of(memory.noc_bytes_per_cycle) < dram;
  whole_ = by_noc_ ? rate_of(memory.noc_bytes_per_cycle) : dram;
  for (Core& core : cores_) core.free.assign(static_cast<size_t>(memory.dma_channels), 0);
  slots_ = tiles_.steps(0) + behind_;  // no core has more
  if (!shortcut) return;
  for (const Level& level : tiles_.levels()) levels_.emplace_back(tiles_, level);
}

Result Walk::run() {
  for (size_t c = 0; c < cores_.size(); ++c) settle(c);
  enter_slot();
  Copy copy;
  bool waiting = next(copy);
  int64_t start = kUnknown;  // when the copy that waits flows
  while (waiting || !flows_.empty()) {
    if (waiting && start == kUnknown) {
      const int64_t from = begin(copy);
      if (from != kUnknown) start = issue(copy, from);
    }
    due_.settle(horizon());
    int64_t end = kNever;
    for (const Flow& flow : flows_) {
      if (flow.rate > 0) end = std::min(end, now_ + ceil_div(flow.left, flow.rate));
    }
    const bool starts = start != kUnknown && start <= end;
    if (!starts && end == kNever) throw Error(ErrorCode::kInput, "Tiles wait for each other.");
    flow_until(starts ? start : end);
    if (starts) {
      flows_.push_back({copy, copy.units, 0, kUnknown});
      share();
      start = kUnknown;
      waiting = next(copy);
    } else {
      share();
    }
  }
  for (size_t c = 0; c < cores_.size(); ++c) {
    settle(c);
    if (cores_[c].known != steps(c)) throw Error(ErrorCode::kInput, "Tiles wait for ever.");
    result_.walked += cores_[c].known;
  }
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

// ---- what is in order

// Sets `copy` to the next one of the program; false: there is none.
bool Walk::next(Copy& copy) {
  while (slot_ < slots_) {
    if (operands_) {
      const auto operand = static_cast<size_t>(std::countr_zero(operands_));
      operands_ &= operands_ - 1;
      copy = make_copy(core_, slot_ - (storing_ ? behind_ : 0), operand, storing_);
      return true;
    }
    if (++core_ == cores_.size()) {
      core_ = 0;
      storing_ = !storing_;
      if (!storing_) {
        ++slot_;
        enter_slot();
        continue;
      }
    }
    const int64_t index = slot_ - (storing_ ? behind_ : 0);
    if (index < 0 || index >= steps(core_)) continue;
    operands_ = storing_ ? step(core_, index).stores : step(core_, index).loads;
  }
  return false;
}

// Begins a slot, or the one that follows whole periods.
void Walk::enter_slot() {
  for (size_t c = 0; c < cores_.size(); ++c) {
    settle(c);
    forget(cores_[c]);
  }
  if (flows_.empty()) pass_idle_time();
  int64_t oldest = slot_, newest = slot_;
  for (const Core& core : cores_) {
    oldest = std::min(oldest, core.first);
    newest = std::max(newest, core.first + static_cast<int64_t>(core.steps.size()));
  }
  oldest += skipped_;
  for (SteadyState& level : levels_) {
    if (!level.wants(slot_ + skipped_, oldest, newest + skipped_)) continue;
    due_.settle(horizon());
    const Moment here = moment(oldest);
    const int64_t times = level.repeats(here, newest + skipped_);
    if (times > 0) {
      repeat(level, here, times);
      oldest += times * (here.step - level.before().step);
      level.forget();
    }
  }
  if (slot_ < steps(0)) operands_ = step(0, slot_).loads;
}

Copy Walk::make_copy(size_t core, int64_t index, size_t operand, bool write) {
  const Memory& memory = machine_.memory;
  const Place at = tiles_.place(static_cast<int>(core), index + skipped_);
  const int64_t bytes = tiles_.bytes(at, operand);
  elements_[operand] += tiles_.volume(at, operand);
  const int64_t row = std::clamp<int64_t>(work_.operands[operand].row_bytes, 1, bytes);
  const int64_t bursts = ceil_div(bytes, row) * ceil_div(row, memory.burst_bytes);
  const int64_t touched = std::min(memory.dram_channels, ceil_div(bytes, memory.interleave_bytes));
  const int64_t dma =
      std::min(rate_of(memory.dma_bytes_per_cycle), rate_of(memory.sram_bytes_per_cycle));
  const __int128 units = static_cast<__int128>(bursts) * memory.burst_bytes * kUnits;
  if (units > std::numeric_limits<int64_t>::max() / 2) {
    throw Error(ErrorCode::kInput, "A copy of so many bytes is not walked.");
  }
  result_.hop_bytes += bytes * memory.hops[core];
  ++result_.copies;
  const auto channel = static_cast<size_t>(cores_[core].copies++ % memory.dma_channels);
  return {core,
          index,
          channel,
          write,
          dma <= touched * per_channel_,
          static_cast<int64_t>(units),
          std::min(dma, touched * per_channel_),
          tiles_.setups(at, operand, ceil_div(bytes, row)),
          0};
}

// ---- steps

Step& Walk::step(size_t core, int64_t index) {
  Core& owner = cores_[core];
  const Memory& memory = machine_.memory;
  for (int64_t i = owner.first + static_cast<int64_t>(owner.steps.size()); i <= index; ++i) {
    const int number = static_cast<int>(core);
    const int64_t place = i + skipped_;
    const Place at = tiles_.place(number, place);
    Step made;
    made.times = tiles_.times(at);
    made.loads = tiles_.loads(number, place);
    made.stores = tiles_.stores(number, place);
    made.loaded.left = std::popcount(made.loads);
    made.stored.left = std::popcount(made.stores);
    made.finishes = (place + 1) % tiles_.sums() == 0;
    if (work_.on_array && memory.sram_accesses < kStreams) {  // copies take turns with the array
      for (uint64_t left = made.loads | made.stores; left; left &= left - 1) {
        const auto operand = static_cast<size_t>(std::countr_zero(left));
        made.times.bank +=
            ticks_of(static_cast<double>(tiles_.bytes(at, operand)) / memory.sram_bytes_per_cycle);
      }
    }
    if (work_.on_array && !made.finishes) made.times.vector = 0;
    if (made.finishes) owner.outputs.push_back({0, made.stored});
    owner.steps.push_back(made);
  }
  return owner.steps[static_cast<size_t>(index - owner.first)];
}

// Fixes the times of a core's next step, if they are known.
bool Walk::settle_one(size_t number) {
  Core& core = cores_[number];
  if (core.known >= std::min(steps(number), slot_ + kAhead)) return false;
  Step& one = step(number, core.known);
  if (one.loaded.left) return false;
  int64_t start = std::max(one.loaded.end, core.computed);
  const int64_t result = (core.known + skipped_) / tiles_.sums();
  const int64_t before = result - (work_.double_buffer ? 2 : 1);
  if (before >= 0) {
    const Output& gone = output(core, before);
    if (gone.stored.left) return false;
    start = std::max({start, gone.vector_end, gone.stored.end});
  }
  const int64_t computed = start + one.times.compute;
  one.compute_end = computed + one.times.bank;
  const int64_t vector = std::max(one.compute_end, core.passed);
  one.vector_end = vector + one.times.vector;
  if (!work_.on_array) one.compute_end = one.vector_end;
  if (one.finishes) output(core, result).vector_end = one.vector_end;
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
  return true;
}

void Walk::settle(size_t core) {
  while (settle_one(core)) forget(cores_[core]);
}

// Before which nothing happens any more that is not known: copies are issued in order, a step that
// waits for one ends behind it, and a step that may not be settled yet follows the last one.
int64_t Walk::horizon() const {
  int64_t out = std::min(now_, issued_);
  for (const Core& core : cores_) {
    if (core.known >= slot_ + kAhead) out = std::min(out, core.computed);
  }
  return out;
}

// While no copy flows or waits: none begins before the tile has left whose place it takes.
void Walk::pass_idle_time() {
  int64_t time = kNever;
  for (size_t c = 0; c < cores_.size(); ++c) {
    const int64_t before = std::min(slot_ - 2, steps(c) - 1);
    if (before < cores_[c].first || before >= cores_[c].known) return;
    time = std::min(time, step(c, before).compute_end);
  }
  now_ = std::max(now_, time);
  issued_ = std::max(issued_, time);
}

// Drops steps and results that nobody asks for any more.
void Walk::forget(Core& core) {
  const int64_t needed = std::min(core.known, slot_ - 2);
  while (core.first < needed && !core.steps.front().stored.left) {
    core.steps.pop_front();
    ++core.first;
  }
  const int64_t asked = (std::min(core.known, core.first) + skipped_) / tiles_.sums() - 2;
  while (core.first_output < asked) {
    core.outputs.pop_front();
    ++core.first_output;
  }
}

// ---- copies

// When a copy's place in the memory, or what it writes, is there.
int64_t Walk::ready(const Copy& copy) {
  Core& core = cores_[copy.core];
  const int64_t before = copy.write ? copy.step : copy.step - (work_.double_buffer ? 2 : 1);
  if (before + skipped_ < 0) return 0;
  if (core.known <= before) return kUnknown;
  const Step& one = step(copy.core, before);
  if (copy.write) return one.vector_end;
  if (work_.double_buffer) return work_.on_array ? one.compute_end : one.vector_end;
  return one.stored.left ? kUnknown : std::max(one.vector_end, one.stored.end);
}

// When a copy's channel begins with it; kUnknown where that is not known yet.
int64_t Walk::begin(const Copy& copy) {
  const int64_t free = cores_[copy.core].free[copy.channel];
  const int64_t there = ready(copy);
  return free == kUnknown || there == kUnknown ? kUnknown : std::max({free, there, issued_});
}

// Sets a copy up, and returns when it flows.
int64_t Walk::issue(Copy& copy, int64_t from) {
  const Memory& memory = machine_.memory;
  const int64_t set = from + copy.setups * memory.setup_cycles * kTicks;
  const int64_t hopped = set + memory.hops[copy.core] * memory.hop_cycles * kTicks;
  const int64_t there = hopped + (copy.write ? memory.write_latency : memory.read_latency);
  const int64_t start = std::max(there, now_);  // invariant 1: none flows before the one ahead
  due_.mark(kDma, from, set);
  due_.mark(kNoc, set, hopped);
  due_.mark(kDram, hopped, start);
  copy.begun = issued_ = from;
  cores_[copy.core].free[copy.channel] = kUnknown;
  return start;
}

void Walk::flow_until(int64_t then) {
  const int64_t passed = then - now_;
  now_ = then;
  size_t kept = 0;
  for (Flow& flow : flows_) {
    flow.left -= std::min(flow.left, flow.rate * passed);
    if (flow.left == 0) {
      finish(flow);
    } else {
      flows_[kept++] = flow;
    }
  }
  flows_.resize(kept, {});
  for (size_t c = 0; c < cores_.size(); ++c) settle(c);
}

void Walk::finish(const Flow& flow) {
  const Copy& copy = flow.copy;
  Core& core = cores_[copy.core];
  due_.end(flow.cause, now_);
  core.free[copy.channel] = now_;
  timeline_.add(2 + static_cast<int>(copy.channel), static_cast<int>(copy.core),
                copy.begun + skipped_time_, now_ + skipped_time_);
  Step& one = step(copy.core, copy.step);
  (copy.write ? one.stored : one.loaded).ended(now_);
  if (copy.write && one.finishes) {
    output(core, (copy.step + skipped_) / tiles_.sums()).stored.ended(now_);
  }
  last_ = std::max(last_, now_);
}

// Gives the rate to copies in order, each up to its cap.
void Walk::share() {
  int64_t left = whole_;
  for (Flow& flow : flows_) {
    flow.rate = std::min(flow.copy.cap, left);
    left -= flow.rate;
    const bool all = flow.rate == flow.copy.cap;
    const int cause = all ? (flow.copy.by_dma ? kDma : kDram) : (by_noc_ ? kNoc : kDram);
    if (cause == flow.cause) continue;
    if (flow.cause != kUnknown) due_.end(flow.cause, now_);
    due_.begin(cause, now_);
    flow.cause = cause;
  }
}

// ---- periods

Moment Walk::moment(int64_t oldest) const {
  Moment out{.step = slot_ + skipped_,
             .oldest = oldest,
             .time = now_ + skipped_time_,
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

// All that what follows depends on, relative to the present time and slot. Times of channels that
// no copy can begin at any more count as the last one at which one began.
void Walk::describe(std::vector<int64_t>& state) const {
  const int64_t result = (slot_ + skipped_) / tiles_.sums();
  state.push_back(issued_ - now_);
  for (const Core& core : cores_) {
    state.insert(state.end(), {core.known - slot_, core.computed - now_, core.passed - now_,
                               core.copies % machine_.memory.dma_channels, core.first - slot_});
    for (const int64_t free : core.free) {
      state.push_back(free == kUnknown ? kNever : std::max(free, issued_) - now_);
    }
    const auto waited = [&](const Waited& one) {
      state.insert(state.end(), {one.left, one.end ? one.end - now_ : kNever});
    };
    int64_t index = core.first;
    for (const Step& one : core.steps) {
      const bool known = index++ < core.known;
      state.insert(state.end(), {static_cast<int64_t>(one.loads), static_cast<int64_t>(one.stores),
                                 one.times.compute, one.times.bank, one.times.vector,
                                 known ? one.compute_end - now_ : kNever,
                                 known ? one.vector_end - now_ : kNever});
      waited(one.loaded);
      waited(one.stored);
    }
    state.push_back(core.first_output - result);
    for (const Output& one : core.outputs) {
      state.push_back(one.vector_end ? one.vector_end - now_ : kNever);
      waited(one.stored);
    }
  }
  for (const Flow& flow : flows_) {
    const Copy& copy = flow.copy;
    state.insert(state.end(),
                 {static_cast<int64_t>(copy.core), copy.step - slot_,
                  static_cast<int64_t>(copy.channel), copy.write, copy.by_dma, copy.cap,
                  copy.setups, flow.left, flow.rate, flow.cause, copy.begun - now_});
  }
  due_.describe(now_, state);
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
  const int64_t sums = tiles_.sums();
  if (found.level().results) {
    for (Core& core : cores_) core.first_output += steps / sums;
  }
}

}  // namespace

Result walk(const Machine& machine, const Work& work, size_t timeline, bool shortcut) {
  return Walk(machine, work, timeline, shortcut).run();
}

}  // namespace npusim::simulate
