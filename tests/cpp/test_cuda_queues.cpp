// Work of the CUDA device that nobody waits for, over the stub driver: in streams of its own and of
// others, and in what order memory comes and goes.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "cpp/cuda/driver.h"
#include "cpp/runtime/weights.h"
#include "tests/cpp/stub_device.h"

namespace npusim::tests {
namespace {

// A run in the stream of another library: `queue` lives as long as the process, or not.
void runs_in_streams_of_others(uintptr_t queue, int orders_a_run) {
  StubProgram program;
  const auto device = cuda();
  Executor executor(program.get(), device);
  const auto x = put(*device, Floats(8, 3)), y = device->allocate(32);
  const Binding in = bytes_of(*x), out = bytes_of(*y);
  const auto run = [&] { executor.enqueue(0, {&in, 1}, {&out, 1}, nullptr, nullptr, queue); };
  const int waited = stub.calls("cuStreamSynchronize");
  run();  // after what the device's own stream holds
  const int ordered = stub.calls("cuStreamWaitEvent");
  run();
  check(stub.calls("cuStreamWaitEvent") == ordered + orders_a_run, "one run after the other");
  check(stub.calls("cuStreamSynchronize") == waited, "the host does not wait");
  executor.settle(0);
  check(stub.calls("cuStreamSynchronize") == waited + 1, "the host waits");
  check(get(*device, *y) == Floats(8, 3), "computed");
  executor.enqueue(0, {&in, 1}, {&in, 1}, nullptr, nullptr, queue);
  check(get(*device, *x) == Floats(8, 3), "an output in the place of an input");
  run();
  const int freed = stub.calls("cuCtxSynchronize");
  auto passing = std::make_unique<Executor>(program.get(), device);
  passing.reset();
  check(stub.calls("cuCtxSynchronize") == freed, "nothing to wait for");
  passing = std::make_unique<Executor>(program.get(), device);
  passing->enqueue(0, {&in, 1}, {&out, 1}, nullptr, nullptr, queue);
  passing.reset();
  check(stub.calls("cuCtxSynchronize") == freed + 1, "freed when nothing runs");
}

void what_cannot_be_queued_is_an_error() {
  StubProgram program;
  const auto device = cuda();
  Executor executor(program.get(), device);
  const auto x = put(*device, Floats(8, 3)), y = device->allocate(32);
  const Binding in = bytes_of(*x), out = bytes_of(*y);
  const auto run = [&](uintptr_t queue) {
    return [&, queue] { executor.enqueue(0, {&in, 1}, {&out, 1}, nullptr, nullptr, queue); };
  };
  for (const std::string call : {"cuEventRecord", "cuStreamWaitEvent", "cuGraphLaunch"}) {
    stub.set("fail " + call, 719);
    check_refused(ErrorCode::kDevice, "The device is lost", run(cuda::kLegacyStream));
    stub.set("fail " + call, 0);
  }
  run(cuda::kLegacyStream)();
  run(0)();
  executor.settle(0);
  check(get(*device, *y) == Floats(8, 3), "usable after that");
}

void few_launches_need_no_graph() {
  CopyProgram copies(8);
  const uint32_t x = copies.input(), y = copies.output();
  copies.copy(x, y);
  const Bytes image = stub_image("copy", 8);
  copies->kernels[0].image = image;
  const auto device = cuda();
  Executor executor(copies.get(), device);
  const auto given = put(*device, Floats(8, 4)), result = device->allocate_unset(32);
  const Binding in = bytes_of(*given), out = bytes_of(*result);
  const int graphs = stub.calls("cuGraphInstantiate");
  executor.run(0, {&in, 1}, {&out, 1}, nullptr);
  check(stub.calls("cuGraphInstantiate") == graphs, "no graph");
  check(get(*device, *result) == Floats(8, 4), "computed");
  stub.set("fail cuLaunchKernelEx", 719);
  check_refused(ErrorCode::kDevice, "could not start a kernel",
                [&] { executor.run(0, {&in, 1}, {&out, 1}, nullptr); });
  stub.set("fail cuLaunchKernelEx", 0);
}

// Weights that init reads one by one, and what happens when it has read one.
class Checkpoint final : public TensorSource {
 public:
  explicit Checkpoint(std::function<void()> left) : left_(std::move(left)) {
    for (size_t i = 0; i < names_.size(); ++i) {
      values_.push_back(Floats(8, static_cast<float>(i)));
      tensors_.push_back({.name = names_[i],
                          .dtype_name = "float32",
                          .dtype = DType::kFloat32,
                          .shape = {8},
                          .data = std::as_bytes(std::span(values_.back()))});
    }
  }
  const CheckpointTensor* find(std::string_view name) const override {
    const auto found = std::find(names_.begin(), names_.end(), name);
    return &tensors_[static_cast<size_t>(found - names_.begin())];
  }
  std::vector<std::string_view> names() const override { return {names_.begin(), names_.end()}; }
  void leave(const CheckpointTensor&) const noexcept override { left_(); }

 private:
  std::vector<std::string> names_ = {"a", "b", "c", "d"};
  std::deque<Floats> values_;
  std::vector<CheckpointTensor> tensors_;
  std::function<void()> left_;
};

// One after another, so that the device never holds the checkpoint as a whole.
void weights_come_when_init_reads_them() {
  CopyProgram copies(8);
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  std::vector<uint32_t> kept;
  for (size_t i = 0; i < names.size(); ++i) {
    kept.push_back(copies.buffer(BufferKind::kPersistent, static_cast<int64_t>(i) * 64));
    copies.copy_once(copies.weight(names[i]), kept.back());
  }
  copies.copy(kept[3], copies.output());
  copies->persistent_bytes = 256;
  const Bytes image = stub_image("copy", 8);
  copies->kernels[0].image = image;
  const auto device = cuda();
  std::vector<int> live;
  const int waited = stub.calls("cuStreamSynchronize");
  auto weights = Weights::load(
      copies.get(), device, std::make_shared<Checkpoint>([&] { live.push_back(stub.live()); }), {});
  check(live.size() == 4 && live.front() == live.back(), "held by the device after each");
  check(stub.calls("cuStreamSynchronize") == waited + 1, "the host waits once");
  Executor executor(copies.get(), device);
  const auto y = device->allocate(32);
  const Binding out = bytes_of(*y);
  executor.run(0, {}, {&out, 1}, weights.get());
  check(get(*device, *y) == Floats(8, 3), "prepared");
  const int freed = stub.calls("cuCtxSynchronize"), before = stub.live();
  weights.reset();
  check(stub.calls("cuCtxSynchronize") > freed && stub.live() < before, "freed after all runs");
  const int left = stub.live();
  const auto starve = [] { stub.set("fail cuMemAllocFromPoolAsync", 2); };
  check_refused(ErrorCode::kDevice, "has no 32 bytes to give: 4096 of", [&] {
    Weights::load(copies.get(), device, std::make_shared<Checkpoint>(starve), {});
  });
  stub.set("fail cuMemAllocFromPoolAsync", 0);
  check(stub.live() == left, "what was brought before is given back");
  stub.set("fail cuMemcpyHtoDAsync", 719);
  check_refused(ErrorCode::kDevice, "could not copy to the device", [&] {
    Weights::load(copies.get(), device, std::make_shared<Checkpoint>([] {}), {});
  });
  stub.set("fail cuMemcpyHtoDAsync", 0);
  check(stub.live() == left, "also when a copy fails");
}

void loads_many_kernels() {
  constexpr uint32_t kCopies = 12;
  CopyProgram copies(8);
  uint32_t from = copies.input();
  std::deque<Bytes> images;
  copies->kernels.resize(kCopies, copies->kernels[0]);
  for (uint32_t i = 0; i < kCopies; ++i) {
    const uint32_t to = i + 1 == kCopies ? copies.output() : copies.buffer(BufferKind::kTemp);
    copies.copy(from, to);
    copies->methods[0].commands[i].kernel = i;
    copies->kernels[i].image = images.emplace_back(stub_image("copy", 8));
    from = to;
  }
  copies->methods[0].arena_bytes = 32;
  const auto device = cuda();
  {
    Executor executor(copies.get(), device);
    const auto x = put(*device, Floats(8, 6)), y = device->allocate(32);
    const Binding in = bytes_of(*x), out = bytes_of(*y);
    executor.run(0, {&in, 1}, {&out, 1}, nullptr);
    check(get(*device, *y) == Floats(8, 6), "computed by all of them");
  }
  for (const uint32_t foreign : {9U, 7U}) {
    copies->kernels[foreign].image = images.emplace_back(stub_image("copy", 8, "", "sm_80"));
  }
  check_refused(ErrorCode::kVersion, "kernel 7 (copy): it was compiled for sm_80",
                [&] { Executor(copies.get(), device); });
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  setenv("NPUSIM_CUDA_DRIVER", NPUSIM_STUB_CUDA, 1);
  runs_in_streams_of_others(npusim::cuda::kLegacyStream, 0);
  runs_in_streams_of_others(reinterpret_cast<uintptr_t>(&stub), 2);
  what_cannot_be_queued_is_an_error();
  few_launches_need_no_graph();
  weights_come_when_init_reads_them();
  loads_many_kernels();
  check_given_back(0, 0);
  return exit_code();
}
