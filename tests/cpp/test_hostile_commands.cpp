// Commands that a device refuses before they run: operands that share memory where the kernel
// cannot take it, outputs whose elements collide, strides that arithmetic could not follow, and
// more work or memory than there is. And runs that are asked to end.
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpp/cpu/aliasing.h"
#include "cpp/cpu/work.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/state.h"
#include "cpp/runtime/weights.h"
#include "tests/cpp/check.h"
#include "tests/cpp/copy_program.h"

namespace npusim::tests {
namespace {

using cpu::are_disjoint;
using cpu::OperandWalk;
using cpu::PlacedWalk;

struct Dim {
  int64_t size, stride;
};

PlacedWalk walk(int64_t address, const std::vector<Dim>& dims, int64_t bytes = 4) {
  PlacedWalk placed{.space = 0, .address = address, .before = address, .after = 4096, .walk = {}};
  placed.walk.bytes = bytes;
  placed.walk.count = 1;
  for (const Dim& dim : dims) {
    placed.walk.sizes[placed.walk.rank] = dim.size;
    placed.walk.strides[placed.walk.rank++] = dim.stride;
    placed.walk.count *= dim.size;
  }
  return placed;
}

// Every byte of a walk, one by one.
std::vector<bool> bytes_of(const PlacedWalk& placed) {
  std::vector<bool> touched(4096);
  const OperandWalk& walk = placed.walk;
  for (int64_t i = 0; i < walk.count; ++i) {
    int64_t rest = i, at = placed.address;
    for (int d = walk.rank - 1; d >= 0; --d) {
      at += rest % walk.sizes[d] * walk.strides[d] * walk.bytes;
      rest /= walk.sizes[d];
    }
    for (int64_t b = 0; b < walk.bytes; ++b) touched.at(static_cast<size_t>(at + b)) = true;
  }
  return touched;
}

void finds_slices_of_one_tensor_disjoint() {
  // Columns [0, 2) and [2, 4) of rows of 9, one of them backwards, or all of them one element.
  check(are_disjoint(walk(0, {{6, 9}, {2, 1}}), walk(12, {{6, 9}, {2, -1}})), "mirrored columns");
  check(are_disjoint(walk(0, {{6, 9}, {2, 1}}), walk(8, {{6, 9}, {2, 0}})), "one column");
  check(!are_disjoint(walk(0, {{6, 9}, {2, 1}}), walk(4, {{6, 9}, {2, 1}})), "a column of both");
  check(!are_disjoint(walk(0, {{6, 9}, {2, 1}}), walk(33, {{6, 9}, {1, 1}}, 1)), "a part of one");
  check(are_disjoint(walk(0, {{4, 1}}), walk(16, {{4, 1}})), "one after another");
  check(!are_disjoint(walk(0, {{4, 1}}), walk(15, {{4, 1}}, 1)), "the last byte");
  check(are_disjoint(walk(0, {{0, 1}}), walk(0, {{4, 1}})), "nothing");
  PlacedWalk elsewhere = walk(0, {{4, 1}}), anything = walk(64, {}, 0);
  elsewhere.space = 1;
  check(are_disjoint(elsewhere, walk(0, {{4, 1}})), "another memory");
  check(!are_disjoint(anything, walk(0, {{1, 1}})), "an operand without a walk reaches back");
}

// What is said to be disjoint is; and most of what is, is found to be.
void never_says_disjoint_of_what_meets() {
  uint64_t state = 1;
  const auto below = [&](uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state >> 33) % n);
  };
  int meeting = 0, proved = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto any = [&] {
      std::vector<Dim> dims;
      for (int64_t d = below(4); d > 0; --d) dims.push_back({1 + below(4), below(25) - 6});
      return walk(1024 + below(64), dims, int64_t{1} << below(3));
    };
    const PlacedWalk a = any(), b = any();
    const std::vector<bool> x = bytes_of(a), y = bytes_of(b);
    bool meets = false;
    for (size_t at = 0; at < x.size(); ++at) meets |= x[at] && y[at];
    const bool said = are_disjoint(a, b);
    check(!(meets && said), "walk " + std::to_string(i) + " meets and was said to be disjoint");
    meeting += meets;
    proved += said;
  }
  check(meeting > 5000 && proved > 1000, "the cases are of both kinds");
}

std::shared_ptr<Device> cpu_device(Interruption interruption = {}, int64_t max_work = 0,
                                   int threads = 2) {
  return open_device("cpu", {{"threads", threads}, {"max_work", max_work}},
                     {.interruption = std::move(interruption)});
}

void refuses_operands_that_overlap() {
  CopyProgram program(16);
  const uint32_t x = program.buffer(BufferKind::kTemp, 0), y = program.buffer(BufferKind::kTemp, 0);
  program->methods[0].arena_bytes = 192;
  program.copy(x, y);
  const auto refused = [&](const char* what) {
    check_refused(ErrorCode::kFormat, what, [&] { Executor(program.get(), cpu_device()); });
  };
  refused("it writes operand 1 where operand 0 lies");  // a copy onto itself, too
  program->buffers[y].bytes = program->buffers[x].bytes = 128;
  program->buffers[y].offset = 64;
  Executor(program.get(), cpu_device());  // 16 elements end where the others begin
  program.params().shape[0] = 17;
  refused("it writes operand 1 where operand 0 lies");
}

void refuses_outputs_that_collide() {
  CopyProgram program(16);
  program.copy(program.input(), program.output());
  program.params().y_strides[0] = 0;
  check_refused(ErrorCode::kFormat, "elements collide",
                [&] { Executor(program.get(), cpu_device()); });
}

// Of dimensions that lead nowhere, too: kernels calculate with their strides.
void refuses_strides_that_lead_too_far() {
  CopyProgram program(16);
  program.copy(program.input(), program.output());
  program.params().rank = 2;
  const auto refused = [&](int64_t size, int64_t stride) {
    program.params().shape[1] = size;
    program.params().x_strides[1] = stride;
    check_refused(ErrorCode::kFormat, "a size or a stride is negative or too large",
                  [&] { Executor(program.get(), cpu_device()); });
  };
  for (const int64_t far : {(int64_t{1} << 44) + 1, INT64_MAX, INT64_MIN}) {
    refused(1, far);
    refused(0, far);
  }
  refused(1, -(int64_t{1} << 44) - 1);
  program.params().x_strides[1] = 1 << 20;
  Executor(program.get(), cpu_device());
}

// One sum over `count` elements that are all the same one: the smallest file with the most work.
class EndlessSum {
 public:
  EndlessSum(int64_t count, int64_t sums) : program_(1) {
    abi::ReduceParams& p = params_;
    p.op = 0;
    p.rank = p.reduced_rank = 1;
    for (int64_t& size : p.shape) size = 1;
    for (int64_t& size : p.reduced) size = 1;
    p.shape[0] = sums;
    p.reduced[0] = count;
    p.y_strides[0] = 1;
    program_->kernels[0] = {"reduce", abi::ReduceParams::kSchema, {}};
    const uint32_t x = program_.input(), y = program_.output();
    program_->buffers[y].bytes = sums * 4;
    program_->methods[0].outputs[0].shape = program_->methods[0].outputs[0].alloc_shape = {sums};
    program_.copy(x, y);
    program_->methods[0].commands[0].params = std::as_bytes(std::span(&params_, 1));
  }
  std::shared_ptr<const Program> get() const { return program_.get(); }

 private:
  abi::ReduceParams params_ = {};
  CopyProgram program_;
};

void refuses_more_work_than_there_is_time_for() {
  const EndlessSum endless(int64_t{1} << 40, 1), modest(1000, 16);
  check_refused(ErrorCode::kFormat, "one of its tasks takes more than",
                [&] { Executor(endless.get(), cpu_device()); });
  const auto work = cpu::work_of(*modest.get(), modest.get()->methods[0]);
  check(work.size() == 1 && work[0] == 16016, "1,000 steps a sum, and one to write it");
  Executor(modest.get(), cpu_device({}, 16016));
  check_refused(ErrorCode::kLimit, "takes 16016 steps, and max_work is 16015",
                [&] { Executor(modest.get(), cpu_device({}, 16015)); });
  check_refused(ErrorCode::kDevice, "max_work is a count", [&] { cpu_device({}, -1); });
}

void refuses_more_memory_than_it_may_have() {
  CopyProgram program(16);
  const uint32_t x = program.input(), y = program.output(), w = program.weight("w");
  const uint32_t kept = program.buffer(BufferKind::kPersistent, 0);
  const uint32_t state = program.buffer(BufferKind::kState, 0);
  program->persistent_bytes = 128;
  program->state_bytes = 256;
  program->init.arena_bytes = 1024;
  program->methods[0].arena_bytes = 512;
  program.copy_once(w, kept);
  program.copy(x, y);
  program.copy(kept, state);
  const int64_t declared = 64 + 128 + 256 + 1024 + 128;
  check(declared_memory(*program).total() == declared,
        "weights, prepared, state, arena, arguments");
  for (const char* name : {"cpu", "null"}) {
    const auto opened = [&](int64_t most) { return open_device(name, {{"max_memory", most}}); };
    State(program.get(), opened(declared));
    Executor(program.get(), opened(declared));
    const auto refused = [](const auto& load) {
      check_refused(ErrorCode::kLimit,
                    "declares 1600 bytes of memory (arena 1024, state 256, prepared weights 128, "
                    "inputs and outputs 128, weights 64), and max_memory is 1599",
                    load);
    };
    const auto small = opened(declared - 1);
    refused([&] { Executor(program.get(), small); });
    refused([&] { State(program.get(), small); });
    refused([&] { Weights::load_prepared(program.get(), small, {}); });
    check_refused(ErrorCode::kDevice, "max_memory is a count", [&] { opened(-1); });
  }
}

// Loops around an empty one run, too: packing many panels of no rows.
void counts_loops_around_empty_ones() {
  CopyProgram program(16);
  program.copy(program.input(), program.output());
  abi::PackBParams params = {};
  params.groups = 1;
  params.n = int64_t{1} << 46;
  params.taps = 1;
  params.n_stride = 0;
  program->kernels[0] = {"pack_b", abi::PackBParams::kSchema, {}};
  program->methods[0].commands[0].params = std::as_bytes(std::span(&params, 1));
  check_refused(ErrorCode::kFormat, "one of its tasks takes more than",
                [&] { Executor(program.get(), cpu_device()); });
  params.n = 16;
  Executor(program.get(), cpu_device());
}

// A run whose commands take long asks, on the thread that called it, and ends where it is told to.
void long_runs_ask_whether_to_go_on() {
  for (const int threads : {1, 3}) {
    const EndlessSum slow(int64_t{1} << 22, 4096), quick(1000, 16);
    int asked = 0;
    bool stop = false;
    const auto caller = std::this_thread::get_id();
    const auto device = cpu_device(
        [&] {
          check(std::this_thread::get_id() == caller, "asked on the caller's thread");
          ++asked;
          if (stop) throw std::runtime_error("enough");
        },
        0, threads);
    float x = 1.0f;
    std::vector<float> y(4096);
    const Binding in = host_range(std::as_bytes(std::span(&x, 1))),
                  out = host_range(std::as_bytes(std::span(y)));
    Executor short_runs(quick.get(), device), long_runs(slow.get(), device);
    short_runs.run(0, {&in, 1}, {&out, 1}, nullptr);
    check(asked == 0, "short runs are left alone");
    stop = true;
    for (int again = 0; again < 2; ++again) {
      bool ended = false;
      try {
        long_runs.run(0, {&in, 1}, {&out, 1}, nullptr);
      } catch (const std::runtime_error& error) {
        ended = std::string(error.what()) == "enough";
      }
      check(ended && asked == again + 1, "it ends at the first question");
    }
    short_runs.run(0, {&in, 1}, {&out, 1}, nullptr);
    check(y[0] == 1000.0f, "the device runs on");
  }
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  finds_slices_of_one_tensor_disjoint();
  never_says_disjoint_of_what_meets();
  refuses_operands_that_overlap();
  refuses_outputs_that_collide();
  refuses_strides_that_lead_too_far();
  refuses_more_work_than_there_is_time_for();
  refuses_more_memory_than_it_may_have();
  counts_loops_around_empty_ones();
  long_runs_ask_whether_to_go_on();
  return exit_code();
}
