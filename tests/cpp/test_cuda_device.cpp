// The CUDA device over the stub driver (stub_cuda.cpp): what is asked of the driver, and when.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "cpp/cuda/driver.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/weights.h"
#include "tests/cpp/check.h"
#include "tests/cpp/copy_program.h"
#include "tests/cpp/cuda_image.h"

namespace npusim::tests {
namespace {

using Floats = std::vector<float>;

// The stub's own interface.
class Stub {
 public:
  Stub() : library_(dlopen(NPUSIM_STUB_CUDA, RTLD_NOW)) {}
  void set(const std::string& what, int value) {
    reinterpret_cast<void (*)(const char*, int)>(dlsym(library_, "stub_set"))(what.c_str(), value);
  }
  int calls(const char* name) {
    return reinterpret_cast<int (*)(const char*)>(dlsym(library_, "stub_calls"))(name);
  }
  int live() { return reinterpret_cast<int (*)()>(dlsym(library_, "stub_live"))(); }

 private:
  void* library_;
};

Stub stub;

std::shared_ptr<Device> cuda() {
  return open_device("cuda");
}

std::shared_ptr<Memory> put(Device& device, const Floats& values) {
  auto memory = device.allocate(static_cast<int64_t>(values.size() * 4));
  device.upload(*memory, 0, std::as_bytes(std::span(values)));
  return memory;
}

Floats get(Device& device, const Memory& memory) {
  Floats values(static_cast<size_t>(memory.bytes()) / 4);
  device.download(std::as_writable_bytes(std::span(values)), memory, 0);
  return values;
}

Binding bytes_of(const Memory& memory) {
  return {memory.data(), static_cast<size_t>(memory.bytes())};
}

// x -> temporary -> y by the stub's `entry`, with images that live here.
class StubProgram {
 public:
  explicit StubProgram(const std::string& entry = "copy", const std::string& more = "",
                       int64_t count = 8)
      : program_(count) {
    const uint32_t x = program_.input(), y = program_.output();
    const uint32_t between = program_.buffer(BufferKind::kTemp);
    program_->methods[0].arena_bytes = count * 4;
    program_.copy(x, between);
    program_.copy(between, y);
    program_->target = "cuda:sm_90";
    image(stub_image(entry, count, more));
  }
  void image(Bytes bytes) {
    images_.push_back(std::move(bytes));
    program_->kernels[0].image = images_.back();
  }
  Program* operator->() { return &*program_; }
  std::shared_ptr<const Program> get() const { return program_.get(); }

 private:
  CopyProgram program_;
  std::deque<Bytes> images_;
};

void says_what_is_missing() {
  check_refused(ErrorCode::kDevice,
                "there is no CUDA driver on this machine (libnpusim_absent.so cannot be loaded). "
                "Install NVIDIA's driver, or choose another device.",
                [] { cuda::Driver::load("libnpusim_absent.so"); });
  stub.set("VERSION", 11080);
  check_refused(ErrorCode::kDevice,
                "too old: it speaks CUDA 11.8, npusim needs 12.0. Update NVIDIA's driver.", cuda);
  stub.set("VERSION", 13000);
  stub.set("DEVICES", 0);
  check_refused(ErrorCode::kDevice, "finds no device", cuda);
  stub.set("DEVICES", 1);
  stub.set("fail cuInit", 999);
  check_refused(ErrorCode::kDevice, "the stub was told to fail (CUDA_ERROR_STUB)", cuda);
  stub.set("fail cuInit", 0);
  check_refused(ErrorCode::kDevice, "no CUDA device 1; this machine has 1", [] {
    DeviceOptions options;
    options.ordinal = 1;
    open_device("cuda", options);
  });
  stub.set("fail cuStreamCreate", 999);
  check_refused(ErrorCode::kDevice, "make a stream", cuda);
  stub.set("fail cuStreamCreate", 0);
}

void describes_the_device() {
  const auto device = cuda();
  check(device->description() == "Stub GPU, sm_90, 1024 MiB, driver for CUDA 13.0",
        device->description());
  check(device->name() == "cuda" && !device->shares_host_memory() && device->stream() != 0,
        "facts");
}

void memory_is_zeroed_and_given_back() {
  for (const int pools : {1, 0}) {
    stub.set("POOLS", pools);
    const auto device = cuda();
    const int before = stub.live();
    {
      const auto memory = device->allocate(100);
      const auto empty = device->allocate(0);
      check(reinterpret_cast<uintptr_t>(memory->data()) % 256 == 0, "alignment");
      check(empty->data() != nullptr && empty->bytes() == 0, "empty memory has an address");
      check(get(*device, *memory) == Floats(25), "zeroed");
      check(stub.live() == before + 2, "allocated");
    }
    check(stub.live() == before, "freed");
    check_refused(ErrorCode::kDevice, "no 4294967296 bytes to give: 4096 of 1073741824 are free",
                  [&] { device->allocate(int64_t{1} << 32); });
  }
  check(stub.calls("cuMemAlloc") > 0, "without pools");
  stub.set("POOLS", 1);
}

void what_was_lent_is_freed_when_nothing_runs() {
  const auto device = cuda();
  const int before = stub.calls("cuCtxSynchronize");
  device->allocate(4);
  check(stub.calls("cuCtxSynchronize") == before, "not lent");
  device->allocate(4)->lend();
  check(stub.calls("cuCtxSynchronize") == before + 1, "lent");
}

void copies_of_every_size_arrive() {
  const auto device = cuda();
  for (const size_t count : {0, 1, 1000, (4 << 20) / 4, (4 << 20) / 4 + 1, 15'000'000}) {
    Floats values(count);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 65537);
    const auto memory = put(*device, values);
    const auto twin = device->allocate(memory->bytes());
    device->copy(*twin, 0, *memory, 0, memory->bytes());
    check(get(*device, *twin) == values, std::to_string(count) + " floats");
  }
  const auto memory = put(*device, {1, 2, 3, 4});
  const Floats nine = {9};
  device->upload(*memory, 8, std::as_bytes(std::span(nine)));
  check(get(*device, *memory) == Floats{1, 2, 9, 4}, "an offset");
  stub.set("fail cuMemcpyHtoDAsync", 700);
  check_refused(ErrorCode::kDevice, "could not copy to the device", [&] { put(*device, nine); });
  stub.set("fail cuMemcpyHtoDAsync", 0);
}

void runs_as_one_graph() {
  StubProgram program;
  const auto device = cuda();
  Executor executor(program.get(), device);
  const auto x = put(*device, Floats(8, 3)), y = device->allocate(32), other = device->allocate(32);
  const Binding in = bytes_of(*x), out = bytes_of(*y), elsewhere = bytes_of(*other);
  const int launched = stub.calls("cuLaunchKernel");
  executor.run(0, {&in, 1}, {&out, 1}, nullptr);
  check(get(*device, *y) == Floats(8, 3), "computed");
  const int made = stub.calls("cuGraphInstantiate"),
            set = stub.calls("cuGraphExecKernelNodeSetParams");
  executor.run(0, {&in, 1}, {&out, 1}, nullptr);
  check(stub.calls("cuGraphExecKernelNodeSetParams") == set, "nothing moved");
  executor.run(0, {&in, 1}, {&elsewhere, 1}, nullptr);
  check(stub.calls("cuGraphExecKernelNodeSetParams") == set + 1, "one launch got new arguments");
  check(get(*device, *other) == Floats(8, 3), "the new place");
  check(stub.calls("cuGraphInstantiate") == made, "one graph");
  check(stub.calls("cuLaunchKernel") == launched, "no single launches");
}

// A run in the stream of another library: `queue` lives as long as the process, or not.
void runs_in_streams_of_others(uintptr_t queue, int orders_a_run) {
  StubProgram program;
  const auto device = cuda();
  Executor executor(program.get(), device);
  const auto x = put(*device, Floats(8, 3)), y = device->allocate(32);
  const Binding in = bytes_of(*x), out = bytes_of(*y);
  const auto run = [&] { executor.enqueue(0, {&in, 1}, {&out, 1}, nullptr, nullptr, queue); };
  const int waited = stub.calls("cuStreamSynchronize");
  run();  // behind what the device's own stream holds
  const int ordered = stub.calls("cuStreamWaitEvent");
  run();
  check(stub.calls("cuStreamWaitEvent") == ordered + orders_a_run, "one run behind the other");
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
  check(live.size() == 4 && live.front() == live.back(), "held by the device behind each");
  check(stub.calls("cuStreamSynchronize") == waited + 1, "the host waits once");
  Executor executor(copies.get(), device);
  const auto y = device->allocate(32);
  const Binding out = bytes_of(*y);
  executor.run(0, {}, {&out, 1}, weights.get());
  check(get(*device, *y) == Floats(8, 3), "prepared");
  const int freed = stub.calls("cuCtxSynchronize"), before = stub.live();
  weights.reset();
  check(stub.calls("cuCtxSynchronize") > freed && stub.live() < before, "freed behind all runs");
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

void observes_command_by_command() {
  StubProgram program;
  const auto device = cuda();
  Executor executor(program.get(), device);
  const auto x = put(*device, Floats(8, 3)), y = device->allocate(32);
  const Binding in = bytes_of(*x), out = bytes_of(*y);
  std::vector<Floats> seen;
  executor.observe(0, {&in, 1}, {&out, 1}, nullptr,
                   [&](size_t) { seen.push_back(get(*device, *y)); });
  check(seen == std::vector<Floats>{Floats(8, 0), Floats(8, 3)}, "after each command");
}

// Events lie 0.25 ms apart in the stub.
void times_command_by_command() {
  StubProgram program;
  const auto device = cuda();
  Executor executor(program.get(), device);
  const auto x = put(*device, Floats(8, 3)), y = device->allocate(32), z = device->allocate(32);
  const Binding in = bytes_of(*x), outs[] = {bytes_of(*y), bytes_of(*z)};
  for (const Binding& out : outs) {
    std::vector<double> seconds(2);
    executor.time(0, {&in, 1}, {&out, 1}, nullptr, seconds);
    check(seconds == std::vector<double>(2, 0.25e-3), "the events' times");
  }
  check(get(*device, *y) == Floats(8, 3) && get(*device, *z) == Floats(8, 3), "results");
  const int captures = stub.calls("cuStreamBeginCapture");
  std::vector<double> seconds(2), few(1);
  executor.time(0, {&in, 1}, {&outs[1], 1}, nullptr, seconds);
  check(stub.calls("cuStreamBeginCapture") == captures, "captured once while nothing moves");
  check_refused(ErrorCode::kInput, "2 commands, there is room for the times of 1",
                [&] { executor.time(0, {&in, 1}, {&outs[1], 1}, nullptr, few); });
}

// A kernel that traps breaks the context: every call fails from then on, also those that free.
void a_lost_device_says_so() {
  constexpr int kLaunchFailed = 719;
  StubProgram program;
  const auto device = cuda();
  const auto run = [&] {
    Executor executor(program.get(), device);
    const auto x = put(*device, Floats(8, 3)), y = device->allocate(32);
    const Binding in = bytes_of(*x), out = bytes_of(*y);
    stub.set("fail cuStreamSynchronize", kLaunchFailed);
    executor.run(0, {&in, 1}, {&out, 1}, nullptr);
  };
  check_refused(ErrorCode::kDevice, "The device is lost to this process: start the process again.",
                run);
  stub.set("fail cuMemAllocFromPoolAsync", kLaunchFailed);
  check_refused(ErrorCode::kDevice, "The device is lost", [&] { device->allocate(32); });
  stub.set("fail cuMemAllocFromPoolAsync", 0);
  stub.set("fail cuStreamSynchronize", 0);
}

void scratch_is_the_last_but_one_argument() {
  StubProgram program("through_scratch", R"(, "scratch": 32)");
  const auto device = cuda();
  Executor executor(program.get(), device);
  const auto x = put(*device, Floats(8, 5)), y = device->allocate(32);
  const Binding in = bytes_of(*x), out = bytes_of(*y);
  executor.run(0, {&in, 1}, {&out, 1}, nullptr);
  check(get(*device, *y) == Floats(8, 5), "computed through scratch");
}

void maps_lie_inside_their_operands() {
  const auto refused = [](const std::string& map) {
    StubProgram program("copy", ", \"maps\": [{" + map + ", \"box\": 8}]");
    check_refused(ErrorCode::kFormat, "command 0 (node, net.py:7): its kernel maps what",
                  [&] { Executor(program.get(), cuda()); });
  };
  refused(R"("operand": 2, "rows": 1, "columns": 8, "stride": 16)");
  refused(R"("operand": 0, "rows": 3, "columns": 8, "stride": 16)");
  refused(R"("operand": 0, "rows": 1, "columns": 17, "stride": 16)");
  refused(R"("operand": 0, "rows": 2147483648, "columns": 1, "stride": 1099511627776)");
}

void a_failing_value_is_named_with_its_node() {
  StubProgram program("copy_positive", R"(, "failure": true)");
  const auto device = cuda();
  Executor executor(program.get(), device);
  const auto good = put(*device, Floats(8, 5)), bad = put(*device, {1, 2, -7, 4, 5, 6, 7, 8});
  const auto y = device->allocate(32);
  const Binding in = bytes_of(*good), wrong = bytes_of(*bad), out = bytes_of(*y);
  const auto run = [&](const Binding& x) { executor.run(0, {&x, 1}, {&out, 1}, nullptr); };
  run(in);
  check_refused(ErrorCode::kData,
                "command 0 (node, net.py:7): a value is out of range: -7, limit 0",
                [&] { run(wrong); });
  run(in);  // the flag is down again
  check(get(*device, *y) == Floats(8, 5), "usable after a failure");
  check(executor.can_fail(0), "which is known before");
  executor.enqueue(0, {&wrong, 1}, {&out, 1}, nullptr, nullptr, cuda::kLegacyStream);
  executor.enqueue(0, {&in, 1}, {&out, 1}, nullptr, nullptr, cuda::kLegacyStream);
  check_refused(ErrorCode::kData, "command 0 (node, net.py:7)", [&] { executor.settle(0); });
  executor.settle(0);
  check_refused(ErrorCode::kData, "command 0", [&] {
    executor.observe(0, {&wrong, 1}, {&out, 1}, nullptr, [](size_t) { fail("went on", {}); });
  });
  run(in);
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

void refuses_what_it_cannot_run() {
  const auto device = cuda();
  const auto encode = [&](StubProgram& program) {
    return [&] { Executor(program.get(), device); };
  };
  StubProgram bare;
  bare->kernels[0].image = {};
  bare->target = "cpu";
  check_refused(ErrorCode::kVersion, "compiled for target cpu and has no CUDA code for: copy",
                encode(bare));
  StubProgram hostile;
  hostile.image(bytes_of_text("not an image"));
  check_refused(ErrorCode::kFormat, "kernel 0 (copy)", encode(hostile));
  StubProgram elsewhere;
  elsewhere.image(stub_image("copy", 8, "", "sm_80"));
  check_refused(ErrorCode::kVersion, "for sm_80 and brings no source; this device is sm_90",
                encode(elsewhere));
  StubProgram arguments("add");
  check_refused(ErrorCode::kFormat, "add does not take the 2 pointers", encode(arguments));
  StubProgram unheard("unheard");
  check_refused(ErrorCode::kFormat, "its code has no unheard", encode(unheard));
  stub.set("fail cuModuleLoadData", 200);
  StubProgram refused;
  check_refused(ErrorCode::kDevice, "does not take its code", encode(refused));
  stub.set("fail cuModuleLoadData", 0);
  StubProgram program;
  Executor executor(program.get(), device);
  const auto x = device->allocate(64), y = device->allocate(32);
  const Binding shifted = bytes_of(*x).subspan(4), out = bytes_of(*y);
  check_refused(ErrorCode::kInput, "multiple of 16",
                [&] { executor.run(0, {&shifted, 1}, {&out, 1}, nullptr); });
}

void everything_is_given_back() {
  check(stub.live() == 0, "memory of the device");
  check(stub.calls("cuModuleUnload") == stub.calls("cuModuleLoadData") - 1, "modules");
  check(stub.calls("cuGraphExecDestroy") == stub.calls("cuGraphInstantiate"), "graphs");
  check(stub.calls("cuMemFreeHost") == stub.calls("cuMemHostAlloc"), "pinned memory");
  check(stub.calls("cuDevicePrimaryCtxRelease") == stub.calls("cuDevicePrimaryCtxRetain"),
        "contexts");
  check(stub.calls("cuCtxPopCurrent") == stub.calls("cuCtxPushCurrent"), "current contexts");
  check(stub.calls("cuStreamDestroy") == stub.calls("cuStreamCreate") - 1, "streams");
  check(stub.calls("cuMemPoolDestroy") == stub.calls("cuMemPoolCreate"), "pools");
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  setenv("NPUSIM_CUDA_DRIVER", NPUSIM_STUB_CUDA, 1);
  says_what_is_missing();
  describes_the_device();
  memory_is_zeroed_and_given_back();
  what_was_lent_is_freed_when_nothing_runs();
  copies_of_every_size_arrive();
  runs_as_one_graph();
  runs_in_streams_of_others(npusim::cuda::kLegacyStream, 0);
  runs_in_streams_of_others(reinterpret_cast<uintptr_t>(&stub), 2);
  what_cannot_be_queued_is_an_error();
  few_launches_need_no_graph();
  weights_come_when_init_reads_them();
  observes_command_by_command();
  times_command_by_command();
  a_lost_device_says_so();
  scratch_is_the_last_but_one_argument();
  maps_lie_inside_their_operands();
  a_failing_value_is_named_with_its_node();
  loads_many_kernels();
  refuses_what_it_cannot_run();
  everything_is_given_back();
  return exit_code();
}
