// Reads what of a program's methods depends on the sizes of a call, and checks it on the way
// (docs/npubin.md, "Symbolic sizes"): what is wrong here could not even be evaluated.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cpp/runtime/container.h"
#include "cpp/runtime/program.h"
#include "cpp/runtime/program_records.h"

namespace npusim {

class SizesReader {
 public:
  // Both must outlive the reader.
  SizesReader(const Container& sections, std::span<const std::string_view> strings)
      : strings_(strings),
        symbols_(sections[Section::kSymbols]),
        expressions_(sections[Section::kExpressions]),
        shapes_(sections[Section::kShapes]),
        symbolic_dims_(sections[Section::kSymbolicDims]),
        patches_(sections[Section::kPatches]) {}

  // Gives every method its sizes; commands and specs have been read. Throws Error(kFormat).
  void read(std::vector<Method>& methods);
  // Throws Error(kFormat) if there are records that belong to no method.
  void finish() const;

 private:
  void read_symbols(MethodSizes& sizes, uint32_t count);
  SizeProver read_steps(MethodSizes& sizes, uint32_t count);
  void read_dims(Method& method, uint32_t count, const SizeProver& prover);
  void read_patches(Method& method, uint32_t count);

  std::span<const std::string_view> strings_;
  Rows<SymbolRecord> symbols_;
  Rows<ExpressionRecord> expressions_;
  Rows<ShapesRecord> shapes_;
  Rows<SymbolicDimRecord> symbolic_dims_;
  Rows<PatchRecord> patches_;
};

}  // namespace npusim
