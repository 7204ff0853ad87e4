// The header of a safetensors file that is written: cpp/runtime/safetensors.h reads such files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "cpp/runtime/atomic_file.h"
#include "cpp/runtime/program.h"

namespace npusim {

// Tensors follow each other in the order in which they are added, without holes.
class SafetensorsHeader {
 public:
  // `metadata`: keys and what they say, any text.
  explicit SafetensorsHeader(std::span<const std::pair<std::string_view, std::string>> metadata);

  void add(std::string_view name, DType dtype, std::span<const int64_t> shape);

  // Writes the header; the tensors' bytes begin at the next multiple of `alignment` of the file.
  void write(AtomicFile& file, size_t alignment = 8);

 private:
  std::string text_;
  int64_t end_ = 0;
};

}  // namespace npusim
