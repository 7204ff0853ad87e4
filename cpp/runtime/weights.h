// The weights of a program on a device: what its methods read besides inputs and constants.
//
// Checks a checkpoint against the program, converts what differs in float dtype, shows it to the
// device, and runs the init method over it. The result is immutable; any number of executors of
// the same program on the same device may share it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpp/runtime/device.h"
#include "cpp/runtime/key_names.h"
#include "cpp/runtime/program.h"
#include "cpp/runtime/safetensors.h"

namespace npusim {

// The file that tensors lie in, and what it says of them ("__metadata__").
struct TensorFile {
  std::filesystem::path path;
  const std::map<std::string, std::string>* metadata;
};

// Named tensors in host memory: a checkpoint file, or what a caller holds. Valid, with all that
// find returned, for as long as the source lives.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const CheckpointTensor* find(std::string_view name) const = 0;
  virtual std::vector<std::string_view> names() const = 0;
  // Says that a tensor will not be read soon; a source that can, gives its memory back.
  virtual void leave(const CheckpointTensor&) const noexcept {}
  // Throws Error(kIo) when a file that the tensors lie in was changed in place since it was mapped.
  virtual void check() const {}
  // Nothing where the tensors are in memory. An index of shards has no metadata.
  virtual std::optional<TensorFile> file() const { return std::nullopt; }
};

// A source without tensors, for programs without weights.
std::shared_ptr<const TensorSource> no_tensors();

// What Checkpoint::open finds at the path. Throws Error(kIo or kFormat).
std::shared_ptr<const TensorSource> open_checkpoint(const std::filesystem::path& path);

// Weights as init left them: the arena of kPersistent buffers, and what methods read of the
// checkpoint as it is, by buffer. Each span may be longer than what it shows.
struct PreparedView {
  std::span<const std::byte> persistent;
  std::vector<std::pair<uint32_t, std::span<const std::byte>>> weights;
  std::shared_ptr<const TensorSource> source;  // keeps the memory; null: it has to be copied
};

class Weights {
 public:
  struct Options {
    bool check_nan = false;  // refuse NaN; infinities have uses, in masks
    bool copy = false;       // use no tensor where it lies
    KeyNames names;          // of the program's keys in the checkpoint
    // Told of the bytes of weights that were prepared, and of all, on the calling thread.
    std::function<void(int64_t done, int64_t total)> progress = {};
  };

  // Prepares the weights, or takes them as they are from a file of packed ones (packed_weights.h).
  // Throws Error(kWeights) that names every missing and every unfitting tensor at once, and as
  // check and admit. The source is released on return unless the program's methods read checkpoint
  // tensors where they lie.
  static std::shared_ptr<const Weights> load(std::shared_ptr<const Program> program,
                                             std::shared_ptr<Device> device,
                                             std::shared_ptr<const TensorSource> source,
                                             const Options& options);

  // What the program's methods read, as init left it: the arena of kPersistent buffers, then the
  // buffers in kept(), in order, each while `take` runs. Throws as check, and Error(kWeights) where
  // ranks have parts, which are nobody's to read; as load_prepared does.
  void read(const std::function<void(std::span<const std::byte>)>& take) const;
  // The kWeight buffers that methods read.
  std::vector<uint32_t> kept() const;
  // From what weights of the same program read on a device of the same kind; where it lies, if
  // somebody keeps it, the device can, and not `copy`. Throws Error(kWeights) when the sizes are
  // not the program's.
  static std::shared_ptr<const Weights> load_prepared(std::shared_ptr<const Program> program,
                                                      std::shared_ptr<Device> device,
                                                      const PreparedView& prepared,
                                                      bool copy = false);

  // Where a kWeight or kPersistent buffer lives on the device; nothing for other kinds, and for
  // what only init read. Throws Error(kInput) when there is no such buffer.
  std::optional<MemoryRange> range(uint32_t buffer) const;
  // Says that runs on queues of others may read them: see Memory::lend.
  void lend() const noexcept;
  // Whether the source is still in use: methods read tensors where they lie.
  bool in_place() const noexcept { return source_ != nullptr; }
  // Throws Error(kIo) when a file in use was changed in place: where pages of it were lost, at
  // once; else when the last look is a second ago.
  void check() const {
    if (source_ != nullptr) check_source();
  }
  // As check, and looks now.
  void check_now() const;
  // Tells these weights from all others of the process.
  uint64_t serial() const noexcept { return serial_; }
  // Tensors the source has and the program does not use.
  const std::vector<std::string>& extra() const noexcept { return extra_; }
  // A sentence for who loaded packed weights that had to be prepared anew (packed_weights.h); else
  // empty.
  const std::string& note() const noexcept { return note_; }
  const Program& program() const noexcept { return *program_; }
  const Device& device() const noexcept { return *device_; }

 private:
  Weights(std::shared_ptr<const Program> program, std::shared_ptr<Device> device);
  static std::shared_ptr<const Weights> from_packed(std::shared_ptr<const Program> program,
                                                    std::shared_ptr<Device> device,
                                                    const class PackedWeights& packed,
                                                    const Options& options);
  void place(const WeightSpec& spec, const CheckpointTensor& tensor, bool copy);
  void place_parts(const WeightSpec& spec, const CheckpointTensor& tensor, bool copy);
  void require_one_rank() const;
  void allocate_persistent();
  void check_source() const;
  void run_init(const TensorSource& source, std::span<const CheckpointTensor* const> tensors,
                const Options& options);
  void release(std::shared_ptr<const TensorSource> source);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<Device> device_;
  uint64_t serial_;
  // By buffer: a tensor, as a copy or where it lies.
  std::vector<std::shared_ptr<Memory>> tensors_;
  std::vector<bool> lies_in_source_;  // by buffer
  std::shared_ptr<Memory> persistent_;
  std::shared_ptr<const TensorSource> source_;
  mutable std::atomic<int64_t> looked_{0};  // at the files in use: when, in milliseconds
  std::vector<std::string> extra_;
  std::string note_;
};

}  // namespace npusim
