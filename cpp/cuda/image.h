// The device code of one kernel as a .npubin holds it (docs/npubin.md, "CUDA images"): launches
// with their geometry, a cubin, and the source to compile on another architecture.
//
// The header is hostile until parsed. The code is not checked, and cannot be: it is trusted as far
// as a shared library would be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/cuda/tensor_map.h"
#include "cpp/device_code/image_reader.h"
#include "cpp/device_code/library_problem.h"

namespace npusim::cuda {

inline constexpr ImageKind kImageKind{{"NPUCUDA\x01", 8}, "CUDA"};

struct CudaLaunch : ImageLaunch {
  std::optional<unsigned> elsewhere;  // shared, for code of another architecture than the cubin's
};

struct Image {
  std::string arch;  // of the cubin: "sm_90"
  std::vector<CudaLaunch> launches;
  std::optional<int64_t> operands;  // the launches take so many, others are the library's alone
  int64_t scratch = 0;
  bool failure = false;
  bool exchange = false;                  // between ranks
  bool dependent = false;                 // every block waits for the launch before by itself
  std::vector<Matrix> maps;               // of which the launches take the maps, after all pointers
  std::optional<LibraryProblem> library;  // what a library may do instead of the launches
  std::vector<std::string> options;       // for the compiler, besides the architecture
  std::span<const std::byte> cubin;       // may be empty when there is a source
  std::span<const std::byte> source;      // zlib-compressed; may be empty when there is a cubin
};

// Parses and validates; the spans point into `bytes`. `what` names the image in messages. Throws
// Error(kFormat).
Image parse_image(std::span<const std::byte> bytes, const std::string& what);

// Whether a cubin of architecture `arch` runs on a device of this compute capability: the same
// major number and no newer minor one; with a suffix ("sm_90a"), the very same.
bool runs_on(std::string_view arch, int major, int minor);

// Whether the bytes are a CUDA ELF file whose tables lie inside it: the driver is not told the
// size.
bool is_cubin(std::span<const std::byte> bytes);

}  // namespace npusim::cuda
