// The CUDA device over the stub driver (stub_cuda.cpp): what is asked of the driver, and when.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cpp/cuda/driver.h"
#include "tests/cpp/stub_device.h"

namespace npusim::tests {
namespace {

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
  check_refused(ErrorCode::kDevice, "no CUDA device 1; this machine has 1",
                [] { open_device("cuda", {{"ordinal", 1}}); });
  check_refused(ErrorCode::kDevice, "the device cuda has no option threads; it has: ordinal",
                [] { open_device("cuda", {{"threads", 1}}); });
  stub.set("fail cuStreamCreate", 999);
  check_refused(ErrorCode::kDevice, "make a stream", cuda);
  stub.set("fail cuStreamCreate", 0);
}

void describes_the_device() {
  const auto device = cuda();
  check(device->description() == "Stub GPU, sm_90, 1024 MiB, driver for CUDA 13.0",
        device->description());
  check(device->name() == "cuda" && device->addressing() == Addressing::kDevice &&
            !device->host_visible() && !device->synchronous(),
        "facts");
  check(device->streams() != nullptr && device->streams()->stream() != 0, "a stream of its own");
  const auto names = device->foreign_names();
  check(names && names->dlpack_type == 2 && names->torch == "cuda:0" && names->speaks_cuda,
        "names");
  std::array<std::byte, 64> bytes = {};
  check(device->import_host(bytes, nullptr) == nullptr, "memory of the host is not used in place");
}

void memory_is_zeroed_and_given_back() {
  for (const int pools : {1, 0}) {
    stub.set("POOLS", pools);
    const auto device = cuda();
    const int before = stub.live();
    {
      const auto memory = device->allocate(100);
      const auto empty = device->allocate(0);
      check(memory->range().offset % 256 == 0, "alignment");
      check(empty->range().offset != 0 && empty->bytes() == 0, "empty memory has an address");
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

// Through one pinned buffer where they fit, so that nothing waits between them.
void small_uploads_go_together() {
  const auto device = cuda();
  const auto memory = put(*device, Floats(10));
  const Floats values = {1, 2, 3, 4, 5};
  const auto bytes = std::as_bytes(std::span(values));
  const auto at = [&](int64_t first, size_t count) {
    return Upload{memory->range().part(first * 4, static_cast<int64_t>(count) * 4),
                  bytes.first(count * 4)};
  };
  const int copies = stub.calls("cuMemcpyHtoDAsync"), events = stub.calls("cuEventRecord");
  const int waits = stub.calls("cuEventSynchronize");
  device->upload_all(std::vector<Upload>{at(0, 2), at(4, 0), at(7, 3), at(1, 1)});
  check(get(*device, *memory) == Floats{1, 1, 0, 0, 0, 0, 0, 1, 2, 3},
        "each at its place, in order");
  check(stub.calls("cuMemcpyHtoDAsync") == copies + 3, "a copy each");
  // One of each is the download's that looks.
  check(stub.calls("cuEventRecord") == events + 2 && stub.calls("cuEventSynchronize") == waits + 2,
        "one event for all");
  Floats large((5 << 20) / 4, 6);
  large.back() = 7;
  const auto room = device->allocate(static_cast<int64_t>(large.size()) * 4);
  device->upload_all(
      std::vector<Upload>{at(0, 5), {room->range(), std::as_bytes(std::span(large))}, at(5, 5)});
  check(
      get(*device, *room) == large && get(*device, *memory) == Floats{1, 2, 3, 4, 5, 1, 2, 3, 4, 5},
      "what is larger than the buffer, between others");
  device->upload_all({});
  stub.set("fail cuMemcpyHtoDAsync", 700);
  check_refused(ErrorCode::kDevice, "could not copy to the device",
                [&] { device->upload_all(std::vector<Upload>{at(0, 1)}); });
  stub.set("fail cuMemcpyHtoDAsync", 0);
}

void downloads_wait_for_what_is_asked_for() {
  const auto device = cuda();
  const std::shared_ptr<Memory> one = put(*device, {1, 2}), two = put(*device, {3, 4});
  const int live = stub.live(), waited = stub.calls("cuEventSynchronize");
  auto first = device->start_download(one), second = device->start_download(two);
  check(stub.calls("cuEventSynchronize") == waited, "nobody waits yet");
  const auto floats = [](Download& download) {
    const std::span<std::byte> bytes = download.wait();
    Floats values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  check(floats(*second) == Floats{3, 4} && floats(*second) == Floats{3, 4}, "arrived");
  check(stub.calls("cuEventSynchronize") == waited + 1, "once, for that one");
  check(floats(*first) == Floats{1, 2} && stub.live() == live, "arrived");
  check(device->start_download(device->allocate(0))->wait().empty(), "nothing");
  const int pinned = stub.calls("cuMemHostAlloc");
  first.reset();
  second.reset();
  for (int i = 0; i < 3; ++i) device->start_download(one);  // dropped: waited for, then used again
  check(stub.calls("cuMemHostAlloc") == pinned, "pinned memory is kept");
  check(stub.calls("cuEventSynchronize") == waited + 6, "nothing is dropped while it is written");
  stub.set("fail cuEventSynchronize", 700);
  first = device->start_download(one);
  check_refused(ErrorCode::kDevice, "could not copy from the device", [&] { first->wait(); });
  stub.set("fail cuEventSynchronize", 0);
  check(floats(*first) == Floats{1, 2}, "asked again");
  auto last = device->start_download(put(*device, {5}));
  check(floats(*last) == Floats{5}, "the download keeps what it reads");
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
  const Binding shifted = bytes_of(*x).part(4, 32), out = bytes_of(*y);
  check_refused(ErrorCode::kInput, "multiple of 16",
                [&] { executor.run(0, {&shifted, 1}, {&out, 1}, nullptr); });
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
  small_uploads_go_together();
  downloads_wait_for_what_is_asked_for();
  runs_as_one_graph();
  observes_command_by_command();
  times_command_by_command();
  a_lost_device_says_so();
  scratch_is_the_last_but_one_argument();
  maps_lie_inside_their_operands();
  a_failing_value_is_named_with_its_node();
  refuses_what_it_cannot_run();
  check_given_back(1, 1);
  return exit_code();
}
