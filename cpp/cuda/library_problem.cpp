#include "cpp/cuda/library_problem.h"

#include <array>
#include <set>

#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // of any number in a problem
constexpr size_t kMostProducts = 16;

class ProblemReader {
 public:
  explicit ProblemReader(JsonReader& json) : json_(json) {}

  LibraryProblem read() {
    LibraryProblem problem;
    const std::set<std::string> keys = members({"name", "dtype"}, [&](const std::string& key) {
      if (key == "name") {
        problem.name = one_of<LibraryName>({"cublaslt", "cudnn"});
      } else if (key == "dtype") {
        problem.type = one_of<LibraryType>({"float32", "float16", "bfloat16"});
      } else if (key == "activation") {
        problem.activation = one_of<LibraryActivation>({"none", "relu", "gelu_tanh"});
      } else if (key == "plan") {
        problem.plan = number();
      } else if (key == "version") {
        problem.version = number();
      } else if (key == "products") {
        json_.array([&] { problem.products.push_back(product()); });
      } else if (key == "convolution") {
        problem.convolution = this->convolution();
      } else {
        json_.skip();
      }
    });
    if (problem.products.size() > kMostProducts) json_.refuse("too many products");
    const bool wanted = problem.name == LibraryName::kCudnn;
    if (keys.contains("convolution") != wanted || problem.products.empty() != wanted) {
      json_.refuse("cublaslt computes products, cudnn a convolution");
    }
    return problem;
  }

 private:
  // An object whose keys differ and include `needed`; the keys that are there.
  template <typename Member>
  std::set<std::string> members(std::initializer_list<const char*> needed, Member member) {
    std::set<std::string> seen;
    json_.object([&](const std::string& key) {
      if (!seen.insert(key).second) json_.refuse("the key " + key + " appears twice");
      member(key);
    });
    for (const char* key : needed) {
      if (!seen.contains(key)) json_.refuse("there is no " + std::string(key));
    }
    return seen;
  }

  template <typename Choice>
  Choice one_of(std::initializer_list<const char*> names) {
    const std::string given = json_.string();
    int index = 0;
    for (const char* name : names) {
      if (given == name) return static_cast<Choice>(index);
      ++index;
    }
    json_.refuse("a library has no '" + given.substr(0, 40) + "'");
  }

  int64_t number() {
    const int64_t value = json_.natural();
    if (value > kMost) json_.refuse(std::to_string(value) + " is too large");
    return value;
  }

  template <size_t kCount>
  std::array<int64_t, kCount> numbers() {
    std::array<int64_t, kCount> values{};
    size_t count = 0;
    json_.array([&] {
      if (count == kCount) json_.refuse("expected " + std::to_string(kCount) + " numbers");
      values[count++] = number();
    });
    if (count != kCount) json_.refuse("expected " + std::to_string(kCount) + " numbers");
    return values;
  }

  void pair(int64_t (&to)[2]) {
    const auto [first, second] = numbers<2>();
    to[0] = first;
    to[1] = second;
  }

  LibraryMatrix matrix() {
    const auto [operand, first, row, batch] = numbers<4>();
    return {operand, first, row, batch};
  }

  LibraryImage image() {
    const auto [operand, batch, row, column] = numbers<4>();
    return {operand, batch, row, column};
  }

  LibraryProduct product() {
    LibraryProduct p;
    members({"m", "n", "k", "x", "w", "y"}, [&](const std::string& key) {
      if (key == "m") {
        p.m = number();
      } else if (key == "n") {
        p.n = number();
      } else if (key == "k") {
        p.k = number();
      } else if (key == "batch") {
        p.batch = number();
      } else if (key == "columns_inside") {
        p.columns_inside = json_.boolean();
      } else if (key == "x") {
        p.x = matrix();
      } else if (key == "w") {
        p.w = matrix();
      } else if (key == "y") {
        p.y = matrix();
      } else if (key == "bias") {
        p.bias = matrix();
      } else if (key == "residual") {
        p.residual = matrix();
      } else {
        json_.skip();
      }
    });
    if (p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0) json_.refuse("an empty product");
    return p;
  }

  LibraryConvolution convolution() {
    LibraryConvolution c;
    const std::pair<const char*, int64_t*> sizes[] = {{"batch", &c.batch},
                                                      {"channels", &c.channels},
                                                      {"out_channels", &c.out_channels},
                                                      {"groups", &c.groups},
                                                      {"w", &c.w}};
    const std::pair<const char*, int64_t (*)[2]> pairs[] = {
        {"in_size", &c.in_size}, {"out_size", &c.out_size}, {"kernel", &c.kernel},
        {"stride", &c.stride},   {"dilation", &c.dilation}, {"pad", &c.pad}};
    members({"batch", "channels", "out_channels", "groups", "w", "in_size", "out_size", "kernel",
             "stride", "dilation", "pad", "x", "y"},
            [&](const std::string& key) {
              for (const auto& [name, to] : sizes) {
                if (key == name) {
                  *to = number();
                  return;
                }
              }
              for (const auto& [name, to] : pairs) {
                if (key == name) return pair(*to);
              }
              if (key == "x") {
                c.x = image();
              } else if (key == "y") {
                c.y = image();
              } else if (key == "bias") {
                c.bias = number();
              } else if (key == "residual") {
                c.residual = image();
              } else {
                json_.skip();
              }
            });
    check_geometry(c);
    return c;
  }

  // Sizes that fit together; the padding behind follows from them.
  void check_geometry(LibraryConvolution& c) {
    bool fits = c.batch > 0 && c.channels > 0 && c.out_channels > 0 && c.groups > 0 &&
                c.channels % c.groups == 0 && c.out_channels % c.groups == 0;
    for (int i = 0; i < 2 && fits; ++i) {
      constexpr int64_t kMostSteps = 1 << 20;
      fits = c.in_size[i] > 0 && c.out_size[i] > 0 && c.kernel[i] > 0 && c.stride[i] > 0 &&
             c.dilation[i] > 0 && c.out_size[i] <= kMostSteps && c.stride[i] <= kMostSteps &&
             c.kernel[i] <= kMostSteps && c.dilation[i] <= kMostSteps;
      if (!fits) break;
      const int64_t reach = (c.out_size[i] - 1) * c.stride[i] + c.dilation[i] * (c.kernel[i] - 1);
      c.pad_behind[i] = reach + 1 - c.in_size[i] - c.pad[i];
      // A window may stop short of the end, but of no whole step.
      fits = c.pad_behind[i] > -c.stride[i];
      if (c.pad_behind[i] < 0) c.pad_behind[i] = 0;
    }
    if (!fits) json_.refuse("the sizes of the convolution do not fit together");
  }

  JsonReader& json_;
};

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
    for (const LibraryProduct& product : problem.products) check(product);
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
  void check(const LibraryProduct& p) const {
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

int64_t size_of(LibraryType type) {
  return type == LibraryType::kFloat32 ? 4 : 2;
}

LibraryProblem read_problem(JsonReader& json) {
  return ProblemReader(json).read();
}

void check_problem(const LibraryProblem& problem, std::span<const int64_t> bytes,
                   const std::string& what) {
  ProblemChecker(problem, bytes, what);
}

}  // namespace npusim::cuda
