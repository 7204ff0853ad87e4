// The whole hardware interface: what a backend implements, and all the runtime knows of one.
//
// A backend is a folder cpp/<name>/ with device.cpp, and one line in the table of devices.cpp.
// The order of calls: open a Device; allocate Memory; encode a Method once into a CommandList
// (kernels resolved, parameters checked, scratch reserved); then, for each run, bind what moved
// and submit. Between encode and destruction nothing is looked up by name, and submit allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/runtime/program.h"

namespace npusim {

// Device memory; freed with its last owner. On devices that share the host's address space,
// `data` is a host pointer.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* data() const noexcept = 0;  // device address
  virtual int64_t bytes() const noexcept = 0;
  // Says that other libraries may use the memory from now on, on queues that the device does not
  // know: it is freed only when nothing on the device runs any more.
  virtual void lend() noexcept {}
};

// What backends begin transfers with. Throws Error(kInput) when [offset, offset + bytes) leaves the
// memory.
void check_range(const Memory& memory, int64_t offset, int64_t bytes);

// Bytes of a device on their way to the host.
class Download {
 public:
  virtual ~Download() = default;
  // Returns them when they have arrived; they stay there as long as the object lives. Throws
  // Error(kDevice) when what they wait for failed.
  virtual std::span<std::byte> wait() = 0;
};

// One method made ready for one device. Not thread-safe; the executor serialises its use.
class CommandList {
 public:
  virtual ~CommandList() = default;
  // Makes `buffer` live at `address` (device address) for the submissions to come. The caller
  // keeps that memory alive until the last submission that uses it has finished. `address` holds
  // at least Program::buffers[buffer].bytes bytes.
  virtual void bind(uint32_t buffer, std::byte* address) = 0;
  // Runs all commands, in order, and returns when their results are visible to the host.
  // Throws Error(kData) naming the node when a kernel met a value it cannot serve.
  virtual void submit() = 0;
  // As submit, but returns when the commands are in `queue` (see Device::stream; 0: the device's
  // own): what is put there behind them finds their results, and settle() says what they met. Where
  // the device shares the host's memory, the same as submit.
  virtual void enqueue(uintptr_t /*queue*/) { submit(); }
  // Waits for what was enqueued, and throws what submit would have thrown for it.
  virtual void settle() {}
  // Whether a kernel can meet a value it cannot serve: where not, settle() only waits.
  virtual bool can_fail() const noexcept { return true; }
  // Runs the commands one after another and calls `after(index)` behind each: profiles and value
  // taps. Same results as submit, bit for bit.
  virtual void submit_observed(const std::function<void(size_t)>& after) = 0;
  // As submit_observed, for who brings memory, or lets it go, between commands: `after` is called
  // when the command is in the device's own queue, with what is put there later behind it.
  virtual void submit_stepwise(const std::function<void(size_t)>& after) { submit_observed(after); }
  // Runs the commands one after another and writes how long each took, in seconds: `seconds` holds
  // one number a command. Same results as submit, bit for bit. By default by the host's clock.
  virtual void submit_timed(std::span<double> seconds);
  // Who computes a command, where that is another library, with its version; else empty.
  virtual std::string implementation(size_t /*command*/) const { return ""; }
};

// A kernel that device code is wanted of, for parameters that its program has no code for.
struct WantedKernel {
  std::string_view name, schema;
  std::span<const std::byte> params;
  std::span<const std::byte> like;  // its code for other parameters
};

// Device code, one image a wanted kernel in order; or why there is none, and what to do.
struct MadeKernels {
  std::vector<std::vector<std::byte>> images;
  std::string failure;
};

// Makes device code while a program runs; may throw. Called from any thread, from several at once.
using KernelMaker = std::function<MadeKernels(std::span<const WantedKernel>)>;

// Called on the thread that runs a method, about once in many millions of steps: what it throws
// ends the run, with the content of outputs and states undefined.
using Interruption = std::function<void()>;

struct DeviceOptions {
  int threads = 0;           // workers of a CPU device; 0: one for each core it may use
  bool pin_threads = false;  // fix each worker to a core
  std::string isa;           // instruction set of a CPU device; empty: $NPUSIM_ISA, or the best
  int ordinal = 0;           // which of several devices, for a CUDA device
  std::vector<std::string> library_folders = {};  // where else optional libraries may lie
  KernelMaker make_kernels = {};  // for devices whose kernels have sizes as constants; may be empty
  Interruption interruption = {};  // of a CPU device's runs; may be empty
  // The most work that a method may ask a CPU device for, in steps (docs/npubin.md); 0: any.
  int64_t max_work = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const noexcept = 0;  // "cpu"
  // Devices of the same kind read what one of them prepared: weights that init has packed.
  virtual std::string kind() const { return std::string(name()); }
  virtual std::string description() const = 0;           // for people: processor, ISA, threads
  virtual bool shares_host_memory() const noexcept = 0;  // Memory::data is a host pointer
  virtual std::shared_ptr<Memory> allocate(int64_t bytes) = 0;  // 64-byte aligned, zeroed
  // As allocate, for memory that is used little by little, or never: where the device can do it,
  // what is not touched takes no memory and no time.
  virtual std::shared_ptr<Memory> allocate_growing(int64_t bytes) { return allocate(bytes); }
  // As allocate, for memory that is written before it is read: it may hold anything.
  virtual std::shared_ptr<Memory> allocate_unset(int64_t bytes) { return allocate(bytes); }
  // Memory of the host that kernels write, too: Memory::data is a host pointer. For a few bytes.
  virtual std::shared_ptr<Memory> allocate_visible(int64_t bytes) { return allocate(bytes); }
  // All throw Error(kInput) for bytes outside the memory.
  // An upload returns when `from` may change, the others when the bytes have arrived; each is
  // behind all that the device's own queue held before, and in front of all that comes there later.
  virtual void upload(Memory& to, int64_t offset, std::span<const std::byte> from) = 0;
  virtual void download(std::span<std::byte> to, const Memory& from, int64_t offset) = 0;
  virtual void copy(Memory& to, int64_t to_offset, const Memory& from, int64_t from_offset,
                    int64_t bytes) = 0;
  // As download of all of `from`, but returns when the copy has been queued: behind what the
  // device's own queue holds now, and beside what comes there later, which must not write to
  // `from`. By default, downloads.
  virtual std::unique_ptr<Download> start_download(std::shared_ptr<const Memory> from);
  // What ties a device to other libraries that use it: its number, the queue its work runs on as
  // they name it (0: none), waiting for a queue of theirs, and having a queue wait for what another
  // holds now, while the host goes on.
  virtual int ordinal() const noexcept { return 0; }
  virtual uintptr_t stream() const noexcept { return 0; }
  virtual void wait_for(uintptr_t /*stream*/) {}
  virtual void order(uintptr_t /*before*/, uintptr_t /*after*/) {}
  // Whether a queue may cease to exist while the device lives.
  virtual bool is_lasting(uintptr_t /*stream*/) const noexcept { return true; }
  // Throws Error(kVersion) for a kernel this backend lacks (all of them named at once),
  // Error(kFormat) for a command whose parameters reach outside its operands, and Error(kLimit) for
  // more work than the device was opened for.
  virtual std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                              const Method& method) = 0;
};

// Opens a device by name ("cpu", "null"). Throws Error(kDevice): unknown name, with those known.
std::shared_ptr<Device> open_device(std::string_view name, const DeviceOptions& options = {});
// Names of the backends in this build, in order of preference.
std::vector<std::string_view> device_names();

}  // namespace npusim
