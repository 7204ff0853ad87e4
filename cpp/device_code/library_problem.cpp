#include "cpp/device_code/library_problem.h"

#include <algorithm>
#include <array>
#include <set>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // of any number in a problem
constexpr size_t kMostMatmuls = 16;

class ProblemReader {
 public:
  explicit ProblemReader(JsonReader& json) : json_(json) {}

  LibraryProblem read(std::initializer_list<LibraryName> possible) {
    LibraryProblem problem;
    const std::set<std::string> keys = members({"name", "dtype"}, [&](const std::string& key) {
      if (key == "name") {
        problem.name = one_of<LibraryName>({"cublaslt", "cudnn", "mps"});
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
    if (std::ranges::find(possible, problem.name) == possible.end()) {
      json_.refuse("this device never has that library");
    }
    if (problem.products.size() > kMostMatmuls) json_.refuse("too many products");
    const bool wanted = problem.name == LibraryName::kCudnn;
    if (keys.contains("convolution") != wanted || problem.products.empty() != wanted) {
      json_.refuse("cudnn computes a convolution, the others products");
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

  LibraryMatmul product() {
    LibraryMatmul p;
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
      c.pad_after[i] = reach + 1 - c.in_size[i] - c.pad[i];
      // A window may stop short of the end, but of no whole step.
      fits = c.pad_after[i] > -c.stride[i];
      if (c.pad_after[i] < 0) c.pad_after[i] = 0;
    }
    if (!fits) json_.refuse("the sizes of the convolution do not fit together");
  }

  JsonReader& json_;
};

}  // namespace

int64_t size_of(LibraryType type) {
  return type == LibraryType::kFloat32 ? 4 : 2;
}

LibraryProblem read_problem(JsonReader& json, std::initializer_list<LibraryName> possible) {
  return ProblemReader(json).read(possible);
}

}  // namespace npusim
