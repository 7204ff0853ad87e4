// The device code of one kernel as a .npubin holds it (docs/npubin.md, "Metal images"): launches
// with their geometry, and the text in the Metal Shading Language that they are compiled from.
//
// The header is hostile until parsed. The text is not checked, and cannot be: it is trusted as far
// as a shared library would be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/device_code/image_reader.h"
#include "cpp/device_code/library_problem.h"

namespace npusim::metal {

inline constexpr ImageKind kImageKind{{"NPUMETL\x01", 8}, "Metal"};

struct Image {
  std::string arch;  // "apple7": the oldest family that it runs on
  std::vector<ImageLaunch> launches;
  int64_t scratch = 0;
  bool failure = false;
  int64_t batch = 0;  // most dispatches of a command buffer that holds it; 0: any number
  std::optional<LibraryProblem> library;  // what MPS may compute in place of the launches
  std::span<const std::byte> source;      // zlib-compressed; empty where there are no launches
};

// Parses and validates; the span points into `bytes`. `what` names the image in messages. Throws
// Error(kFormat).
Image parse_image(std::span<const std::byte> bytes, const std::string& what);

}  // namespace npusim::metal
