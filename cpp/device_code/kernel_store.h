// The device code of commands: what their program brings, what was made for other sizes before, or
// what is made now. Owns the last for a device, so that a size that comes again costs no code
// generation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/device_code/image_reader.h"
#include "cpp/platform/forks.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"

namespace npusim {

// An image, and what keeps its bytes.
struct KernelCode {
  std::span<const std::byte> image;
  std::shared_ptr<const void> owner;
};

// What a store has to know of the code of a target.
struct CodeFormat {
  std::string_view target;  // "cuda"
  ImageKind kind;
  // How many of a command's operands its kernel takes, where an image says so. Throws
  // Error(kFormat), beginning with `what`. Null: none says so.
  std::optional<int64_t> (*operands)(std::span<const std::byte> image, const std::string& what);
};

class KernelStore {
 public:
  // `make` may be empty: then programs have the code they bring.
  KernelStore(const CodeFormat& format, KernelMaker make)
      : format_(format), make_(std::move(make)) {}

  // The code of each command of a method, in order. Throws Error(kVersion) where the program was
  // not compiled for the target, Error(kDevice) where code is missing and cannot be made here, and
  // what the maker throws.
  std::vector<KernelCode> codes(const std::shared_ptr<const Program>& program,
                                const Method& method);

  // Keeps what was loaded from code that was made here as long as the code: sizes come back.
  void keep_loaded(const KernelCode& code, std::shared_ptr<const void> loaded);

 private:
  struct Made {
    std::shared_ptr<const std::vector<std::byte>> image;
    uint64_t used;
    std::shared_ptr<const void> loaded = nullptr;
  };
  struct Missing;

  void check_target(const Program& program, const Method& method) const;
  void check_sizes(const Program& program, const Method& method) const;
  std::string key_of(const Kernel& kernel, std::span<const std::byte> params) const;
  KernelCode kept(const std::string& key);
  void make(const Program& program, const Method& method, std::vector<Missing>& missing,
            std::vector<KernelCode>& codes);
  KernelCode keep(const std::string& key, std::vector<std::byte> image);

  const CodeFormat format_;
  KernelMaker make_;
  ForkSafeMutex mutex_;               // of what follows; never held while code is made
  std::map<std::string, Made> made_;  // by kernel, parameters, and the header of code like it
  size_t made_bytes_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace npusim
