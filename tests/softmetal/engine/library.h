// MSL text becomes kernels: compiled by clang (msl/compile_library.py) unless the cache folder has
// it, then loaded. The same text with the same macros is loaded once.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/abi.h"

namespace softmetal {

struct LoadedLibrary {
  const Library* tables = nullptr;
  std::string key;  // of text, macros and compiler
};

using Macros = std::vector<std::pair<std::string, std::string>>;

// Null, with the compiler's messages in `error`.
std::shared_ptr<const LoadedLibrary> load_library(const std::string& source, const Macros& macros,
                                                  std::string* error);

// The kernel of a library; null: it has none of that name.
const Kernel* find_kernel(const Library& library, const std::string& name);

// Bytes of an MTLDataType; 0: not one of a function constant.
unsigned data_type_bytes(unsigned type);

}  // namespace softmetal
