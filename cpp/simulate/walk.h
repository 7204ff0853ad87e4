// The time of one scheduled command on a described machine, tile by tile.
//
// Time is counted in ticks of 1/1024 cycle and bytes in units of 2^-20, all integers: the parts of
// the time sum to the whole exactly, and the same input has the same time everywhere.
//
// Invariants:
// 1. Copies begin in the order of the program (all cores' first tiles, their second, …; the results
//    of a tile behind the loads of the tile that takes its buffer), and none waits for a later one.
// 2. DRAM, or the network before it, serves copies in that order at its whole rate. A copy ends
//    when it has been served, and no sooner than its own way takes: its channel, and the channels
//    of DRAM that it touches, from when it is set up.
// 3. A tile is computed when its operands are there, the unit is free, and the results of two tiles
//    ago (of the last one without a second buffer) have left.
// 4. So each time is the greatest of some earlier ones, plus a time that no rate is longer for: by
//    induction over the order, whatever is faster or closer (DRAM, network, DMA, memories, units,
//    latencies) ends every copy and every tile no later, in any machine.
// 5. Nor does what copies do not hide make a rate that is higher slower: it grows with each of two
//    times that no rate is longer for.
// 6. Where tiles of a loop differ only in how far along it they are, and the state before one is
//    that before an earlier one, all that follows repeats: whole periods are then counted, not
//    walked. The result is the same to the tick.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "cpp/simulate/dataflow.h"

namespace npusim::simulate {

constexpr int64_t kTicks = 1024;                // of a cycle
constexpr int64_t kUnits = 1 << 20;             // of a byte
constexpr int64_t kLongest = int64_t{1} << 60;  // ticks that are counted

// What an interval of the time is due to, in the order in which one hides those after it.
enum Cause { kCompute, kVector, kBank, kDram, kNoc, kDma, kDispatch, kDependency };
constexpr int kCauses = 8;

struct Memory {
  double dram_bytes_per_cycle;  // that long copies reach
  int64_t dram_channels, interleave_bytes;
  int64_t read_latency, write_latency;  // ticks
  double noc_bytes_per_cycle;           // of all cores together; 0: no limit
  int64_t hop_cycles;
  std::vector<int64_t> hops;   // from DRAM to each core
  double dma_bytes_per_cycle;  // of a channel
  int64_t dma_channels, setup_cycles, burst_bytes;
  int64_t max_dims;  // of one copy; a tile of more is set up several times
  double sram_bytes_per_cycle, acc_bytes_per_cycle;
  int64_t sram_accesses;  // streams that the banks serve at once
};

struct Machine {
  Array array;
  Memory memory;
  int64_t cores, sync_cycles;
  double array_share;  // of its peak that the array reaches
  // How far copies hide behind what computes: a command takes (a^p + b^p)^(1/p) at least, a and b
  // being all that computes, the cores side by side, and all bytes at DRAM's rate; infinity: the
  // longer of them. What is missing to that is due to what waits for what.
  double overlap_p;
};

// An operand: the axes that it has (bits of b, m, n, k), and what of it is moved.
struct Operand {
  int axes;
  bool write, moved, resident;
  int64_t total_bytes, row_bytes;
};

struct Work {
  bool on_array;  // else the vector unit, or nothing but copies
  std::array<int64_t, 4> sizes, tile;
  std::vector<int> loops;  // axes, the outermost first
  int64_t taps;
  bool depthwise, double_buffer;
  int64_t element_bytes;
  double vector_rate;  // elements a cycle
  std::vector<VectorPass> vector;
  std::vector<Operand> operands;
};

// What a unit did, or several times in a row: `count` times, `busy` ticks between start and end.
struct Interval {
  int lane;  // 0 array, 1 vector unit, 2… DMA channels
  int core;
  int64_t start, end;
  int64_t busy, count;
};

struct Result {
  int64_t ticks = 0;
  std::array<int64_t, kCauses> causes{};
  int64_t dram_read = 0, dram_written = 0;  // bytes
  int64_t sram_bytes = 0, tiles = 0, copies = 0;
  int64_t array_ticks = 0, vector_ticks = 0;  // in which the units of all cores are busy
  int64_t hop_bytes = 0;                      // bytes times the hops of their way to a core
  int64_t events = 0;                         // of units and copies
  int64_t walked = 0;                         // tiles that were walked; others repeat them
  std::vector<Interval> timeline;
};

int64_t ticks_of(double cycles);

// What two times take that hide each other in part: see Machine::overlap_p.
double overlapped(double one, double other, double p);

// Rates as they are counted, in units a tick: of a channel of DRAM, of all of it or the network
// before it, and of a channel of DMA.
struct Rates {
  int64_t per_channel, whole, dma;
  bool by_noc;
};
Rates rates_of(const Memory& memory);

// Bytes a cycle below which a rate is not counted: 64 units a tick, so that what is cut off where
// rates become integers makes nothing slower by more than one in 64.
constexpr double kLeastRate = 1.0 / 16;

// Throws Error(kInput) that says which rate of a machine is not above 0, or below that.
void check_rates(const Memory& memory);

// `timeline`: intervals that are wanted of a command, at most; neighbours are told as one.
// `shortcut`: false walks every tile, to the same result.
// `most`: ticks behind which the walk is given up: it then tells some number of ticks above that,
// and nothing else that means anything.
// Throws Error(kInput) for numbers that mean nothing, or more than 2^24 tiles.
Result walk(const Machine& machine, const Work& work, size_t timeline, bool shortcut = true,
            int64_t most = std::numeric_limits<int64_t>::max());

}  // namespace npusim::simulate
