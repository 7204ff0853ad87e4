// What a library may compute in place of a kernel's launches, as an image describes it
// (docs/npubin.md, "Libraries"): products for cuBLASLt and MPS, or one convolution for cuDNN.
//
// The description is hostile until parsed, and until check_problem has compared it with the
// operands of a command.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/runtime/json.h"

namespace npusim {

enum class LibraryName { kCublasLt, kCudnn, kMps };
enum class LibraryType { kFloat32, kFloat16, kBfloat16 };
enum class LibraryActivation { kNone, kRelu, kGelu };  // GELU by its tanh formula

int64_t size_of(LibraryType type);

// A matrix in an operand, by elements: its first one, a row's distance from the one before, and
// that of the matrices of a batch. Rows are contiguous.
struct LibraryMatrix {
  int64_t operand = 0, first = 0, row_stride = 0, batch_stride = 0;
};

// y[m, n] = act(x[m, k] · W + bias[n] + residual[m, n]), `batch` times; W lies as [n, k], or as
// [k, n] where columns_inside. All of one type.
struct LibraryMatmul {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool columns_inside = false;
  LibraryMatrix x, w, y;
  std::optional<LibraryMatrix> bias, residual;
};

// A tensor [batch, channels, height, width] in an operand, by elements; channels lie one after
// another.
struct LibraryImage {
  int64_t operand = 0, batch_stride = 0, row_stride = 0, column_stride = 0;
};

// y = act(conv(x, w) + residual + bias) in two dimensions, all of one type: w is dense
// [out_channels, height, width, channels / groups], the bias [out_channels].
struct LibraryConvolution {
  int64_t batch = 0, channels = 0, out_channels = 0, groups = 1;
  int64_t in_size[2] = {}, out_size[2] = {}, kernel[2] = {}, stride[2] = {}, dilation[2] = {};
  int64_t pad[2] = {}, pad_after[2] = {};
  LibraryImage x, y;
  int64_t w = 0;                // operand
  std::optional<int64_t> bias;  // operand
  std::optional<LibraryImage> residual;
};

struct LibraryProblem {
  LibraryName name = LibraryName::kCublasLt;
  LibraryType type = LibraryType::kFloat32;
  LibraryActivation activation = LibraryActivation::kNone;
  int64_t plan = 0, version = 0;  // the plan measured to be best, of the library's version; or 0
  std::vector<LibraryMatmul> products;  // for all but cuDNN, run in order
  LibraryConvolution convolution;       // for cuDNN
};

// Consumes the JSON object, whose library is one of those the device may have. Throws
// Error(kFormat).
LibraryProblem read_problem(JsonReader& json, std::initializer_list<LibraryName> possible);

// Verifies that everything the problem reads and writes lies inside operands of `bytes`. Throws
// Error(kFormat), beginning with `what`.
void check_problem(const LibraryProblem& problem, std::span<const int64_t> bytes,
                   const std::string& what);

}  // namespace npusim
