// The whole hardware interface: what a backend implements, and all the runtime knows of one.
//
// A backend is a folder cpp/<name>/ with device.cpp, and one line in the table of devices.cpp. What
// the runtime has to know of one it asks: nobody compares names. Memory is a range of a storage,
// not an address; whether the host can read memory and whether work is over when a call returns are
// two questions; streams are an interface of the devices that have them.
//
// The order of calls: open a Device; allocate Memory; encode a Method once into a CommandList
// (kernels resolved, parameters checked, scratch reserved); then, for each run, bind what moved
// and submit. Between encode and destruction nothing is looked up by name, and submit allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/runtime/device_options.h"
#include "cpp/runtime/program.h"

namespace npusim {

// Bytes of a device's memory: what a buffer of a program is bound to, and what transfers reach.
// `storage` is the device's name for what they lie in, and `offset` where they begin there. Memory
// that has addresses (see Addressing) is one storage, 0, in which an offset is an address.
// Otherwise a storage is a handle, such as a Metal buffer, and offsets count from its beginning.
// Not set by itself: a call has room for many on its stack, and clearing that takes its time.
struct MemoryRange {
  uintptr_t storage;
  uintptr_t offset;
  int64_t bytes;

  // `length` bytes from `from` on. Throws Error(kInput) when they leave the range.
  MemoryRange part(int64_t from, int64_t length) const;
  bool overlaps(const MemoryRange& other) const noexcept {
    return storage == other.storage && bytes > 0 && other.bytes > 0 &&
           offset < other.offset + static_cast<uintptr_t>(other.bytes) &&
           other.offset < offset + static_cast<uintptr_t>(bytes);
  }
  bool operator==(const MemoryRange&) const = default;
};

// Where a range of memory that has addresses begins.
inline std::byte* address_of(const MemoryRange& range) noexcept {
  return reinterpret_cast<std::byte*>(range.offset);
}
// Memory of the host, for a device that takes the host's addresses. Who is given it for reading
// only does not write there.
inline MemoryRange host_range(std::span<const std::byte> bytes) noexcept {
  return {0, reinterpret_cast<uintptr_t>(bytes.data()), static_cast<int64_t>(bytes.size())};
}

// Device memory; freed with its last owner, behind the work of the device that uses it.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual MemoryRange range() const noexcept = 0;
  // Where the host reads and writes the bytes; null where it cannot. What the device still computes
  // may be on its way there: see Device::synchronize.
  virtual std::byte* host() const noexcept { return nullptr; }
  // Throws Error(kDevice) where the work that wrote there last failed, for who has waited for it.
  virtual void check() const {}
  // Says that other libraries may use the memory from now on, on queues that the device does not
  // know: it is freed only when nothing on the device runs any more.
  virtual void lend() noexcept {}

  int64_t bytes() const noexcept { return range().bytes; }
};

// Bytes of the host that are to lie in memory of a device, as many.
struct Upload {
  MemoryRange to;
  std::span<const std::byte> from;
};

// Bytes of a device on their way to the host.
class Download {
 public:
  virtual ~Download() = default;
  // Returns them when they have arrived; they stay there as long as the object lives. Throws
  // Error(kDevice) when what they wait for failed.
  virtual std::span<std::byte> wait() = 0;
};

// One method made ready for one device. Not thread-safe; the executor serialises its use. Its
// destructor waits for what of it is under way.
class CommandList {
 public:
  virtual ~CommandList() = default;
  // Makes `buffer` live at `at`, in memory of the device, for the submissions to come; those under
  // way keep what they began with. The caller keeps that memory alive until the last submission
  // that uses it has finished. `at` holds at least Program::buffers[buffer].bytes bytes.
  virtual void bind(uint32_t buffer, const MemoryRange& at) = 0;
  // Runs all commands, in order, and returns when their results are visible to the host.
  // Throws Error(kData) naming the node when a kernel met a value it cannot serve.
  virtual void submit() = 0;
  // As submit, but returns when the commands are in `queue` (see StreamDevice; 0: the device's
  // own): what is put there behind them finds their results, and settle() says what they met. Of a
  // synchronous device the same as submit.
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

// What the process does for its devices; each uses what it needs, and all may be empty.
struct DeviceServices {
  std::vector<std::string> library_folders = {};  // where else optional libraries may lie
  KernelMaker make_kernels = {};   // for devices whose kernels have sizes as constants
  Interruption interruption = {};  // of runs on the caller's thread
};

// What the memory of a device is known by.
enum class Addressing : uint8_t {
  kHandles,  // a handle and an offset
  kDevice,   // addresses of the device
  kHost,     // addresses of the host: kernels run over any memory of the host, where it lies
};

// A rate that a device was seen to reach: bytes a second that are read ("read"), or operations a
// second on factors of a dtype ("float32").
struct MeasuredRate {
  std::string_view what;
  double per_second;
};

// How other libraries call a device.
struct ForeignNames {
  int32_t dlpack_type, dlpack_id;  // DLPack's DLDevice
  std::string torch;               // PyTorch's, such as "cuda:1"
  bool speaks_cuda = false;        // its addresses and streams are CUDA's
};

// What devices have besides whose work stands in streams that other libraries share: such a stream,
// as they write it, is a queue of CommandList::enqueue.
class StreamDevice {
 public:
  virtual ~StreamDevice() = default;
  virtual uintptr_t stream() const noexcept = 0;  // the device's own; not 0
  virtual void wait_for(uintptr_t stream) = 0;
  // Has `after` wait for what `before` holds now, while the host goes on.
  virtual void order(uintptr_t before, uintptr_t after) = 0;
  // Whether a stream cannot cease to exist while the device lives.
  virtual bool is_lasting(uintptr_t stream) const noexcept = 0;
  // Whether memory at an address is this device's. Throws Error(kInput) for one that is no such
  // device's.
  virtual bool holds(uintptr_t address) const = 0;
};

// A device's own queue holds what was enqueued there; work, transfers and what becomes of memory
// happen in its order.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const noexcept = 0;  // "cpu"
  // Devices of the same kind read what one of them prepared: weights that init has packed.
  virtual std::string kind() const { return std::string(name()); }
  virtual std::string description() const = 0;  // for people: processor, ISA, threads

  // ---- facts, each one independent of the others
  virtual Addressing addressing() const noexcept = 0;
  virtual bool host_visible() const noexcept = 0;  // what `allocate` gives has Memory::host
  virtual bool synchronous() const noexcept = 0;   // nothing is under way when a call returns
  // What kernels ask of the offset of a tensor that a caller brings: to be a multiple of it.
  virtual size_t alignment() const noexcept { return 16; }
  virtual int ordinal() const noexcept { return 0; }  // which of several
  // Nothing where other libraries have no tensors on the device; an asynchronous one has such names
  // only with streams, which put its work behind theirs.
  virtual std::optional<ForeignNames> foreign_names() const { return std::nullopt; }
  virtual StreamDevice* streams() noexcept { return nullptr; }  // null: it has none

  // ---- ranks, which share a program (ranks.h)
  virtual int rank_count() const noexcept { return 1; }
  // What runs that many ranks on this device's hardware: the same as long as somebody has it.
  // Throws Error(kDevice) where they cannot exchange values.
  virtual std::shared_ptr<Device> ranks(int count);
  // Memory that holds other bytes on each rank, as many; of what lies aligned and lives long enough
  // where it lies, if `borrow`. Of devices of several ranks alone.
  virtual std::shared_ptr<Memory> allocate_parts(std::span<const std::span<const std::byte>> parts,
                                                 bool borrow);

  // ---- memory
  virtual std::shared_ptr<Memory> allocate(int64_t bytes) = 0;  // 64-byte aligned, zeroed
  // As allocate, for memory that is used little by little, or never: where the device can do it,
  // what is not touched takes no memory and no time.
  virtual std::shared_ptr<Memory> allocate_growing(int64_t bytes) { return allocate(bytes); }
  // As allocate, for memory that is written before it is read: it may hold anything.
  virtual std::shared_ptr<Memory> allocate_unset(int64_t bytes) { return allocate(bytes); }
  // As allocate, for memory that kernels and transfers alone reach: it may have no Memory::host.
  virtual std::shared_ptr<Memory> allocate_private(int64_t bytes) { return allocate(bytes); }
  // Memory, for a few bytes, in which the host sees what kernels write before they have ended, at
  // Memory::host; null where there is no such memory.
  virtual std::shared_ptr<Memory> allocate_watched(int64_t bytes) {
    return synchronous() && host_visible() ? allocate(bytes) : nullptr;
  }
  // Memory of the host as memory of the device, without a copy; null where the device cannot use it
  // as it lies. `owner` keeps it alive. By default as addressing() says.
  virtual std::shared_ptr<Memory> import_host(std::span<std::byte> bytes,
                                              std::shared_ptr<const void> owner);

  // ---- transfers, of ranges that lie in the device's memory and have as many bytes
  // An upload returns when `from` may change, the others when the bytes have arrived; each is
  // behind all that the device's own queue held before, and in front of all that comes there later.
  virtual void upload(const MemoryRange& to, std::span<const std::byte> from) = 0;
  // Several that are small, one after the other, for little more than what one costs.
  virtual void upload_all(std::span<const Upload> uploads);
  virtual void download(std::span<std::byte> to, const MemoryRange& from) = 0;
  virtual void copy(const MemoryRange& to, const MemoryRange& from) = 0;
  // The same from an offset on. Throw Error(kInput) for bytes outside the memory.
  void upload(Memory& to, int64_t offset, std::span<const std::byte> from);
  void download(std::span<std::byte> to, const Memory& from, int64_t offset);
  void copy(Memory& to, int64_t to_offset, const Memory& from, int64_t from_offset, int64_t bytes);
  // As copy, but may return when the copy has been queued: behind what the device's own queue holds
  // now, and before what comes there later. By default, copies.
  virtual void queue_copy(const MemoryRange& to, const MemoryRange& from) { copy(to, from); }
  // Whether queue_copy waits for nothing that was queued before.
  virtual bool queues_copies() const noexcept { return synchronous(); }
  // As download of all of `from`, but returns when the copy has been queued: behind what the
  // device's own queue holds now, and beside what comes there later, which must not write to
  // `from`. By default, downloads.
  virtual std::unique_ptr<Download> start_download(std::shared_ptr<const Memory> from);
  // Waits for all that the device's own queue holds: the host then finds the results. Failures of
  // command lists are told by CommandList::settle.
  virtual void synchronize() {}

  // Measures what the device reaches at best, with nothing else running; empty where it cannot.
  virtual std::vector<MeasuredRate> measure_rates() { return {}; }

  // ---- programs
  // Throws Error(kVersion) for a kernel this backend lacks (all of them named at once),
  // Error(kFormat) for a command whose parameters reach outside its operands, and Error(kLimit) for
  // more work than the device was opened for.
  virtual std::unique_ptr<CommandList> encode(std::shared_ptr<const Program> program,
                                              const Method& method) = 0;
  // The most bytes that a program may declare (declared_memory.h); 0: any. All have this option.
  int64_t max_memory() const noexcept { return max_memory_; }

 private:
  friend std::shared_ptr<Device> open_device(std::string_view name, const DeviceOptions& options,
                                             const DeviceServices& services);
  int64_t max_memory_ = 0;
};

// Opens a device by name ("cpu", "null"), or by name and number where there are several ("cuda:1";
// one a rank, "cuda:2,3"). Throws Error(kDevice): unknown name, with those known; an option that
// the device does not have, by name; a value it cannot serve.
std::shared_ptr<Device> open_device(std::string_view name, const DeviceOptions& options = {},
                                    const DeviceServices& services = {});
// Names of the backends in this build, in order of preference.
std::vector<std::string_view> device_names();
// The options of a backend, and those that all have. Throws Error(kDevice) for an unknown name.
std::vector<OptionInfo> device_options(std::string_view name);

// What a backend uses that npusim does not bring, such as a driver.
struct DevicePart {
  std::string_view name;
  std::string found;  // version and place; or why it is not there
  bool is_there;
};
// Looks for a backend's parts. Throws Error(kDevice) for an unknown name.
std::vector<DevicePart> device_parts(std::string_view name, const DeviceServices& services = {});

}  // namespace npusim
