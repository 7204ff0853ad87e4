// Whether what a library would read and write lies inside a command's operands.
#include <initializer_list>
#include <utility>

#include "cpp/device_code/library_problem.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

// The bytes from an operand's beginning to the end of `count[i]` steps of `step[i]` elements.
bool lies_inside(int64_t bytes, int64_t size, int64_t first,
                 std::initializer_list<std::pair<int64_t, int64_t>> steps) {
  int64_t last = first;
  for (const auto& [count, step] : steps) {
    int64_t way = 0;
    if (__builtin_mul_overflow(count - 1, step, &way) || __builtin_add_overflow(last, way, &last)) {
      return false;
    }
  }
  return last < bytes / size;
}

class ProblemChecker {
 public:
  ProblemChecker(const LibraryProblem& problem, std::span<const int64_t> bytes,
                 const std::string& what)
      : type_size_(size_of(problem.type)), bytes_(bytes), what_(what) {
    for (const LibraryMatmul& product : problem.products) check(product);
    if (problem.name == LibraryName::kCudnn) check(problem.convolution);
  }

 private:
  void require(bool condition, const char* breach) const {
    if (!condition) throw Error(ErrorCode::kFormat, what_ + ": the library's problem: " + breach);
  }
  int64_t bytes_of(int64_t operand) const {
    require(operand < static_cast<int64_t>(bytes_.size()), "there is no such operand");
    return bytes_[static_cast<size_t>(operand)];
  }
  void check(const LibraryMatrix& matrix, int64_t rows, int64_t columns, int64_t batch) const {
    require(rows == 1 || matrix.row_stride >= columns, "rows overlap");
    require(lies_inside(bytes_of(matrix.operand), type_size_, matrix.first,
                        {{rows, matrix.row_stride}, {columns, 1}, {batch, matrix.batch_stride}}),
            "a matrix passes the end of its operand");
  }
  void check(const LibraryMatmul& p) const {
    check(p.x, p.m, p.k, p.batch);
    check(p.w, p.columns_inside ? p.k : p.n, p.columns_inside ? p.n : p.k, p.batch);
    check(p.y, p.m, p.n, p.batch);
    if (p.bias) check(*p.bias, 1, p.n, 1);
    if (p.residual) check(*p.residual, p.m, p.n, p.batch);
  }
  void check(const LibraryImage& image, int64_t batch, int64_t channels,
             const int64_t (&size)[2]) const {
    require(lies_inside(bytes_of(image.operand), type_size_, 0,
                        {{batch, image.batch_stride},
                         {channels, 1},
                         {size[0], image.row_stride},
                         {size[1], image.column_stride}}),
            "a tensor passes the end of its operand");
  }
  void check(const LibraryConvolution& c) const {
    check(c.x, c.batch, c.channels, c.in_size);
    check(c.y, c.batch, c.out_channels, c.out_size);
    if (c.residual) check(*c.residual, c.batch, c.out_channels, c.out_size);
    const int64_t taps = c.kernel[0] * c.kernel[1], channels = c.channels / c.groups;
    int64_t row = 0;
    const bool fits = !__builtin_mul_overflow(taps, channels, &row) &&
                      lies_inside(bytes_of(c.w), type_size_, 0, {{c.out_channels, row}, {row, 1}});
    require(fits, "the weights pass the end of their operand");
    if (!c.bias) return;
    require(lies_inside(bytes_of(*c.bias), type_size_, 0, {{c.out_channels, 1}}),
            "the bias passes the end of its operand");
  }

  int64_t type_size_;
  std::span<const int64_t> bytes_;
  const std::string& what_;
};

}  // namespace

void check_problem(const LibraryProblem& problem, std::span<const int64_t> bytes,
                   const std::string& what) {
  ProblemChecker(problem, bytes, what);
}

}  // namespace npusim
