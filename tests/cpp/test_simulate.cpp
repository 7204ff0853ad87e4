// The timing model against numbers worked out by hand: folds of each dataflow, what copies take and
// are due to, buffers, cores, and the shortcut over periods. `tests/simulate/test_walk.py` holds it
// to a plain model of everything.
#include <cmath>
#include <limits>
#include <numeric>

#include "cpp/simulate/tile_sequence.h"
#include "cpp/simulate/walk.h"
#include "tests/cpp/check.h"

namespace npusim::simulate {
namespace {

using tests::check;
using tests::check_refused;

Array array(const char* dataflow, int64_t rows, int64_t cols) {
  return {rows, cols, 1, 1, false, 1.0, &Dataflow::named(dataflow)};
}

// One byte a cycle from DRAM, nothing else takes time; one DMA channel.
Machine machine() {
  return {.array = array("os", 4, 4),
          .memory = {.dram_bytes_per_cycle = 1,
                     .dram_channels = 1,
                     .interleave_bytes = 64,
                     .read_latency = 0,
                     .write_latency = 0,
                     .noc_bytes_per_cycle = 0,
                     .hop_cycles = 0,
                     .hops = {1},
                     .dma_bytes_per_cycle = 100,
                     .dma_channels = 1,
                     .setup_cycles = 0,
                     .burst_bytes = 1,
                     .max_dims = 3,
                     .sram_bytes_per_cycle = 1000,
                     .acc_bytes_per_cycle = 1000,
                     .sram_accesses = 3},
          .cores = 1,
          .sync_cycles = 0,
          .array_share = 1,
          .overlap_p = std::numeric_limits<double>::infinity()};
}

// [m, k] times [k, n] in tiles of 4x4x4, one byte an element, nothing resident.
Work product(int64_t m, int64_t n, int64_t k) {
  return {.on_array = true,
          .sizes = {1, m, n, k},
          .tile = {1, 4, 4, 4},
          .loops = {kB, kM, kN, kK},
          .taps = 1,
          .depthwise = false,
          .double_buffer = true,
          .element_bytes = 1,
          .vector_rate = 1,
          .vector = {},
          // x again for each tile along n, if tiles along k lie between.
          .operands = {{0b1010, false, true, false, m * k * (k > 4 ? n / 4 : 1), 1000},
                       {0b1100, false, true, false, k * n * m / 4, 1000},
                       {0b0110, true, true, false, m * n, 1000}}};
}

void expect(int64_t found, int64_t wanted, const char* what,
            const std::source_location at = std::source_location::current()) {
  check(found == wanted,
        std::string(what) + ": " + std::to_string(found) + ", not " + std::to_string(wanted), at);
}

void expect_sum(const Result& result,
                const std::source_location at = std::source_location::current()) {
  expect(std::accumulate(result.causes.begin(), result.causes.end(), int64_t{0}), result.ticks,
         "sum of causes", at);
}

void test_folds() {
  const Product p{5, 9, 6};  // m, n, k on 4 rows and 2 columns
  const Folds ws = Dataflow::named("ws").folds(p, 4, 2);
  expect(ws.folds, 2 * 5, "ws folds");
  expect(ws.steps, 5, "ws steps");
  expect(ws.loads, 4, "ws loads");
  expect(ws.x, 5 * 6 * 5, "ws x");
  expect(ws.w, 6 * 9, "ws w");
  expect(ws.sums, 5 * 9 * 2, "ws sums");
  const Folds os = Dataflow::named("os").folds(p, 4, 2);
  expect(os.folds, 2 * 5, "os folds");
  expect(os.steps, 6, "os steps");
  expect(os.loads, 0, "os loads");
  expect(os.x, 5 * 6 * 5, "os x");
  expect(os.w, 6 * 9 * 2, "os w");
  expect(os.sums, 5 * 9, "os sums");
  const Folds is = Dataflow::named("is").folds(p, 4, 2);
  expect(is.folds, 2 * 3, "is folds");
  expect(is.steps, 9, "is steps");
  expect(is.loads, 4, "is loads");
  expect(is.x, 5 * 6, "is x");
  expect(is.w, 6 * 9 * 3, "is w");
  expect(is.sums, 5 * 9 * 2, "is sums");
  check_refused(ErrorCode::kInput, "No dataflow", [] { Dataflow::named("rs"); });
}

void test_array_cycles() {
  const Product p{5, 9, 6};
  Array ws = array("ws", 4, 2);
  expect(array_cycles(ws, p, 3), 30 * (5 + 4 + 2 - 2 + 4), "without overlap");
  ws.arrays = 4;
  expect(array_cycles(ws, p, 3), 8 * (5 + 4 + 2 - 2 + 4), "on four arrays");
  ws.macs_per_cycle = 0.5;
  expect(array_cycles(ws, p, 1), 3 * (10 + 4 + 2 - 2 + 4), "at half the rate");
  ws = array("ws", 4, 2);
  ws.overlaps = true;
  expect(array_cycles(ws, p, 1), 10 * 5 + 2 * 4 + 2 - 2, "overlapping");
  ws.rows = 16;
  expect(array_cycles(ws, p, 1), 5 * 16 + 2 * 16 + 2 - 2, "bound by rows");
  ws.min_stream_rows = 20;
  expect(array_cycles(ws, p, 1), 5 * 20 + 2 * 16 + 2 - 2, "bound by what streams at least");
  expect(array_cycles(array("os", 4, 2), p, 1), 10 * (6 + 4 + 2 - 2), "stationary sums");
}

// Loads of x and w (16 bytes each), the array (4 + 4 + 4 - 2 cycles), 16 bytes back.
void test_one_tile() {
  const Result found = walk(machine(), product(4, 4, 4), 10);
  expect(found.ticks, (32 + 10 + 16) * kTicks, "one tile");
  expect(found.causes[kDram], 48 * kTicks, "dram");
  expect(found.causes[kCompute], 10 * kTicks, "compute");
  expect(found.dram_read, 32, "read");
  expect(found.dram_written, 16, "written");
  expect(found.copies, 3, "copies");
  expect(found.events, 4, "events");
  expect(static_cast<int64_t>(found.timeline.size()), 4, "timeline");
  expect(found.array_ticks, 10 * kTicks, "array ticks");
  expect(found.sram_bytes, 48 + 32, "what copies and the array move");
  expect_sum(found);
}

void test_what_each_part_is_due_to() {
  Machine slow = machine();
  Memory& memory = slow.memory;
  memory.setup_cycles = 3;
  memory.hop_cycles = 2;
  memory.hops = {2};
  memory.read_latency = 5 * kTicks;
  memory.write_latency = 7 * kTicks;
  memory.burst_bytes = 64;
  Work work = product(4, 4, 4);
  work.vector = {{16, 2.5}};
  work.vector_rate = 5;
  const Result found = walk(slow, work, 0);
  // Each copy: 3 of DMA, 4 of hops, latency, one burst; the channel is one, so none overlap.
  const int64_t read = 3 + 4 + 5 + 64, written = 3 + 4 + 7 + 64;
  expect(found.ticks, (2 * read + 10 + 10 + written) * kTicks, "all parts");
  expect(found.causes[kDma], 9 * kTicks, "dma");
  expect(found.causes[kNoc], 12 * kTicks, "noc");
  expect(found.causes[kDram], (17 + 3 * 64) * kTicks, "dram");
  expect(found.causes[kVector], 10 * kTicks, "4 passes of 2.5 cycles");
  expect(found.vector_ticks, 10 * kTicks, "vector unit");
  expect(found.hop_bytes, 48 * 2, "hops of bytes");
  expect_sum(found);
}

// Rows of 4 bytes, in bursts of 8: twice as long.
void test_bursts() {
  Machine coarse = machine();
  coarse.memory.burst_bytes = 8;
  Work work = product(4, 4, 4);
  for (Operand& operand : work.operands) operand.row_bytes = 4;
  const Result found = walk(coarse, work, 0);
  expect(found.causes[kDram], 3 * 4 * 8 * kTicks, "bursts");
  expect(found.dram_read, 32, "bytes that are asked for");
}

void test_rates() {
  Machine fast = machine();
  fast.memory.dram_bytes_per_cycle = 8;
  fast.memory.dma_channels = 2;
  fast.memory.dma_bytes_per_cycle = 2;
  const Work work = product(4, 4, 4);
  Result found = walk(fast, work, 0);  // both loads side by side, each as fast as its channel
  expect(found.ticks, (8 + 10 + 8) * kTicks, "two channels");
  expect(found.causes[kDma], 16 * kTicks, "due to channels");
  fast.memory.dma_bytes_per_cycle = 100;
  found = walk(fast, work, 0);  // the first takes all of DRAM, then the second
  expect(found.ticks, (4 + 10 + 2) * kTicks, "shared DRAM");
  fast.memory.noc_bytes_per_cycle = 4;
  found = walk(fast, work, 0);
  expect(found.ticks, (8 + 10 + 4) * kTicks, "shared network");
  expect(found.causes[kNoc], 12 * kTicks, "due to the network");
  fast.memory.noc_bytes_per_cycle = 0;
  fast.memory.dram_channels = 4;
  fast.memory.interleave_bytes = 8;  // a load touches two of the four
  found = walk(fast, work, 0);
  expect(found.ticks, (4 + 10 + 4) * kTicks, "channels of DRAM");
  fast.memory.sram_bytes_per_cycle = 1;
  found = walk(fast, work, 0);  // 32 bytes stream in 32 cycles, 22 more than the array takes
  expect(found.causes[kBank], 22 * kTicks, "rate of the memory on the chip");
  Work wide = work;
  wide.element_bytes = 2;
  expect(walk(fast, wide, 0).causes[kBank], 54 * kTicks, "elements of two bytes");
  fast.memory.sram_accesses = 2;
  found = walk(fast, work, 0);
  expect(found.causes[kBank], (22 + 48) * kTicks, "copies take turns with the array");
}

// A tile of y is four rows of four bytes, in two items of a batch.
void test_dimensions_of_copies() {
  Machine plain = machine();
  plain.memory.setup_cycles = 5;
  Work work = product(4, 4, 4);
  work.sizes[kB] = work.tile[kB] = 2;
  work.operands = {{0b0111, true, true, false, 32, 4}};
  for (const auto& [dims, setups] : {std::pair{1, 8}, {2, 2}, {3, 1}}) {
    plain.memory.max_dims = dims;
    expect(walk(plain, work, 0).causes[kDma], 5 * setups * kTicks, "set up");
  }
  work.taps = 9;
  expect(walk(plain, work, 0).causes[kCompute], 2 * 9 * 10 * kTicks, "items and taps");
  plain.memory.max_dims = 1;
  work.operands[0].row_bytes = 1000;
  expect(walk(plain, work, 0).causes[kDma], 5 * kTicks, "all of it one row");
}

void test_sums_pass_the_accumulators() {
  Machine narrow = machine();
  narrow.memory.acc_bytes_per_cycle = 2;
  const Result found = walk(narrow, product(4, 4, 4), 0);
  expect(found.causes[kBank], (4 * 16 / 2 - 10) * kTicks, "sums of four bytes");
  Machine twice = narrow;  // two multiply-adds a cycle: 2 + 4 + 4 - 2 cycles, half of the sums
  twice.array.macs_per_cycle = 2;
  expect(walk(twice, product(4, 4, 4), 0).causes[kBank], (4 * 16 / 2 / 2 - 8) * kTicks, "sums");
  narrow.array_share = 0.5;
  expect(walk(narrow, product(4, 4, 4), 0).causes[kCompute], 20 * kTicks, "half of the peak");
}

// Eight tiles along n, computed in 10 cycles each, with loads of 32 and results of 16.
void test_buffers() {
  Machine plain = machine();
  plain.memory.dma_channels = 3;
  Work work = product(4, 32, 4);
  // x and the first w, seven more, eight results: copies hide the array.
  const Result two = walk(plain, work, 0);
  expect(two.ticks, (32 + 7 * 16 + 8 * 16) * kTicks, "DRAM is busy");
  work.double_buffer = false;
  const Result one = walk(plain, work, 0);
  expect(one.ticks, (32 + 7 * 16 + 8 * (10 + 16)) * kTicks, "one after the other");
  expect_sum(two);
  expect_sum(one);
}

void test_cores() {
  Machine two = machine();
  two.cores = 2;
  two.memory.hops = {1, 1};
  two.sync_cycles = 100;
  const Work work = product(4, 8, 4);
  const Result found = walk(two, work, 0);  // each loads x and its w; the array is hidden
  expect(found.dram_read, 16 * 2 + 16 * 2, "both cores need x");
  expect(found.ticks, (64 + 16 + 16 + 100) * kTicks, "four loads, two results, and the wait");
  expect(found.causes[kDependency], 100 * kTicks, "the wait for each other");
  expect_sum(found);
}

void test_what_stays() {
  Work work = product(8, 8, 4);
  work.operands[1].resident = true;
  work.operands[1].total_bytes = 32;
  const Result found = walk(machine(), work, 0);
  expect(found.dram_read, 8 * 4 + 8 * 4, "both once");
  work.operands[0].moved = false;
  expect(walk(machine(), work, 0).dram_read, 32, "what is there is not copied");
}

// 33 bytes in two tiles: each takes as long as 17, and 33 are told.
void test_shares_are_rounded_up() {
  Work work = product(4, 8, 4);
  work.operands = {{0b0110, true, true, false, 33, 1000}};
  const Result found = walk(machine(), work, 0);
  expect(found.ticks, (10 + 17 + 17) * kTicks, "rounded up");
  expect(found.dram_written, 33, "as many as there are");
}

void test_depthwise() {
  Work work = product(16, 4, 1);
  work.tile = {1, 16, 4, 1};
  work.depthwise = true;
  work.taps = 9;
  const Result found = walk(machine(), work, 0);  // a channel uses one of four columns
  expect(found.causes[kCompute], 4 * 4 * (9 + 4 + 4 - 2) * kTicks, "a fold for each channel");
}

void test_periods() {
  Work work = product(4000, 4000, 64);
  const Result found = walk(machine(), work, 100);
  expect(found.tiles, 16'000'000, "tiles");
  check(found.walked < 100'000, "periods are walked: " + std::to_string(found.walked));
  check(found.timeline.size() <= 100, "a timeline has as many intervals as were asked for");
  expect_sum(found);
  work = product(400, 400, 64);
  const Result all = walk(machine(), work, 0, false), some = walk(machine(), work, 0);
  expect(all.walked, 160'000, "without the shortcut");
  check(some.walked < all.walked, "with it");
  expect(some.ticks, all.ticks, "the same ticks");
  check(some.causes == all.causes, "the same causes");
  expect(some.copies, all.copies, "the same copies");
  expect(some.dram_read, all.dram_read, "the same bytes");
}

void test_refusals() {
  Machine wrong = machine();
  wrong.memory.dram_bytes_per_cycle = std::nan("");
  const Work work = product(4, 4, 4);
  check_refused(ErrorCode::kInput, "channel of DRAM has nan", [&] { walk(wrong, work, 0); });
  wrong = machine();
  wrong.memory.noc_bytes_per_cycle = kLeastRate / 2;
  check_refused(ErrorCode::kInput, "the network has 0.03125", [&] { walk(wrong, work, 0); });
  Work small = work;
  small.tile = {1, 5, 4, 4};
  check_refused(ErrorCode::kInput, "within sizes", [&] { walk(machine(), small, 0); });
  small = work;
  small.loops = {kK, kM};
  check_refused(ErrorCode::kInput, "innermost", [&] { walk(machine(), small, 0); });
  check_refused(ErrorCode::kInput, "2^24", [] { walk(machine(), product(65536, 65536, 4), 0); });
}

}  // namespace
}  // namespace npusim::simulate

int main() {
  using namespace npusim::simulate;
  test_folds();
  test_array_cycles();
  test_one_tile();
  test_what_each_part_is_due_to();
  test_bursts();
  test_rates();
  test_dimensions_of_copies();
  test_sums_pass_the_accumulators();
  test_buffers();
  test_cores();
  test_what_stays();
  test_shares_are_rounded_up();
  test_depthwise();
  test_periods();
  test_refusals();
  return npusim::tests::exit_code();
}
