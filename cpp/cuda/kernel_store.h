// The device code of commands: what their program brings, what was made for other sizes before, or
// what is made now. Owns both for a device, so that methods and sizes share modules, and a size
// that comes again costs no code generation.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/cuda/module.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/forks.h"
#include "cpp/runtime/program.h"

namespace npusim::cuda {

// An image, and what keeps its bytes.
struct KernelCode {
  std::span<const std::byte> image;
  std::shared_ptr<const void> owner;
};

class KernelStore {
 public:
  // `make` may be empty: then programs have the code they bring.
  explicit KernelStore(KernelMaker make) : make_(std::move(make)) {}

  // The code of each command of a method, in order. Throws Error(kVersion) where the program was
  // not compiled for CUDA, Error(kDevice) where code is missing and cannot be made here, and what
  // the maker throws.
  std::vector<KernelCode> codes(const std::shared_ptr<const Program>& program,
                                const Method& method);

  // The module of an image of `code`: the same one for all that use it at a time. Throws as Module.
  std::shared_ptr<const Module> module(const std::shared_ptr<const Context>& context,
                                       const KernelCode& code, const Image& image,
                                       std::span<const std::string> folders,
                                       const std::string& what);

 private:
  struct Made {
    std::shared_ptr<const std::vector<std::byte>> image;
    uint64_t used;
    std::shared_ptr<const Module> module = nullptr;  // once loaded: sizes come back
  };
  struct Missing;

  KernelCode kept(const std::string& key);
  void make(const Program& program, const Method& method, std::vector<Missing>& missing,
            std::vector<KernelCode>& codes);
  KernelCode keep(const std::string& key, std::vector<std::byte> image);

  KernelMaker make_;
  ForkSafeMutex mutex_;               // of what follows; never held while code is made or loaded
  std::map<std::string, Made> made_;  // by kernel, parameters, and the header of code like it
  size_t made_bytes_ = 0;
  uint64_t uses_ = 0;
  std::map<const std::byte*, std::weak_ptr<const Module>> modules_;  // by where their image lies
};

}  // namespace npusim::cuda
