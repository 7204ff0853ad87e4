// Weights as a program's init method left them, in a file: loading them is mapping it.
//
// A safetensors file with the tensors, all of bytes (U8 [n]),
//   persistent    the arena of PERSISTENT buffers
//   weight.<n>    of each WEIGHT buffer that methods read, by the buffer's number
//   recipe        what init does to which tensors of a checkpoint (recipe_of)
// of which the first begins at a multiple of 4,096 and all but the last have zeros at their end, up
// to a multiple of 64; and the metadata
//   format        "npusim packed weights 1"
//   device        the kind of device that prepared them, with its instruction set
//   kernels       what that was built from: a digest of the kernels' sources
//   checked_nan   "1" where a NaN in the checkpoint would have been refused
//   checkpoint    where it was, from this file's folder; "" where it was no file
//   renamings     what its tensors were called in the program: pairs of lines
// Whoever loads a file that another recipe, device or kernels made prepares the weights anew, from
// the checkpoint. The file does not follow that otherwise: it is a checkpoint of its own.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpp/runtime/weights.h"

namespace npusim {

// What `pack_weights` notes of where weights are from.
struct PackedOrigin {
  std::filesystem::path checkpoint;  // empty: no file
  KeyNames names;
  bool checked_nan = false;
};

// Writes weights as such a file, whole or not at all. Throws Error(kIo).
void pack_weights(const Weights& weights, const std::filesystem::path& path,
                  const PackedOrigin& origin);

class PackedWeights {
 public:
  // Nothing where a source is no such file. Throws Error(kFormat) for a damaged one, or one of
  // another version.
  static std::optional<PackedWeights> find(std::shared_ptr<const TensorSource> source);

  // Why a program on a device cannot use them; empty where it can.
  std::string mismatch(const Program& program, const Device& device, bool check_nan) const;
  // As Weights::load_prepared takes them.
  PreparedView view() const;

  const std::filesystem::path& path() const noexcept { return path_; }
  const PackedOrigin& origin() const noexcept { return origin_; }

 private:
  explicit PackedWeights(std::shared_ptr<const TensorSource> source);
  std::string said(const char* key) const;
  std::span<const std::byte> tensor(std::string_view name) const;
  [[noreturn]] void refuse(const std::string& why) const;

  std::shared_ptr<const TensorSource> source_;
  std::filesystem::path path_;
  PackedOrigin origin_;
};

// What init does, and to what: programs of the same recipe leave the same weights in the same
// places.
std::vector<std::byte> recipe_of(const Program& program);

}  // namespace npusim
