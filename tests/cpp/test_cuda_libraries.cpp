// cuBLASLt and cuDNN in place of own kernels, over stubs of both and of the driver: what is taken
// for such a library, what is refused in an image, and the same graph with and without them.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "cpp/cuda/cublaslt.h"
#include "cpp/cuda/cudnn.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/executor.h"
#include "tests/cpp/check.h"
#include "tests/cpp/cuda_image.h"

namespace npusim::tests {
namespace {

using Floats = std::vector<float>;
using Strings = std::vector<std::string>;

constexpr int64_t kWidth = 4, kCount = kWidth * kWidth;
constexpr int kCuda13 = 13000, kCuda12 = 12080;

// The stub driver's own interface.
void* driver_symbol(const char* name) {
  return dlsym(dlopen(NPUSIM_STUB_CUDA, RTLD_NOW), name);
}
void set(const std::string& what, int value) {
  reinterpret_cast<void (*)(const char*, int)>(driver_symbol("stub_set"))(what.c_str(), value);
}
int calls(const char* name) {
  return reinterpret_cast<int (*)(const char*)>(driver_symbol("stub_calls"))(name);
}

std::shared_ptr<Memory> put(Device& device, const Floats& values) {
  auto memory = device.allocate(static_cast<int64_t>(values.size() * 4));
  device.upload(*memory, 0, std::as_bytes(std::span(values)));
  return memory;
}
Floats get(Device& device, const Memory& memory) {
  Floats values(static_cast<size_t>(memory.bytes()) / 4);
  device.download(std::as_writable_bytes(std::span(values)), memory, 0);
  return values;
}

const Floats kX = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7};
const Floats kW = {2, 0, 1, 0, 0, 3, 0, 1, 1, 1, 1, 1, 0, 0, -9, 0};
const Floats kBias = {1, -1, 2, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

// x · wᵀ + bias, of matrices of four rows.
Floats product(const Floats& x, const Floats& w, const Floats& bias = Floats(kCount)) {
  Floats y;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      y.push_back(bias[j]);
      for (size_t k = 0; k < 4; ++k) y.back() += x[i * 4 + k] * w[j * 4 + k];
    }
  }
  return y;
}
Floats sum(Floats a, const Floats& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

const std::string kProduct =
    R"({"m": 4, "n": 4, "k": 4, "x": [0, 0, 4, 0], "w": [1, 0, 4, 0], "y": [2, 0, 4, 0]})";

std::string products(const std::string& inside, const std::string& more = "") {
  return R"({"name": "cublaslt", "dtype": "float32", "products": [)" + inside + "]" + more + "}";
}

// copy x to t; u = t + w, or what a library makes of t and w; copy u to y. Images live here.
class LibraryProgram {
 public:
  explicit LibraryProgram(const std::string& library, int64_t offset = 0,
                          const std::string& more = "") {
    for (const auto kind : {BufferKind::kInput, BufferKind::kInput, BufferKind::kInput,
                            BufferKind::kTemp, BufferKind::kTemp, BufferKind::kOutput}) {
      const bool second = program_->buffers.size() == 4;
      const int64_t bytes = kCount * 4 + 64;
      program_->buffers.push_back({kind, bytes, second ? bytes : 0, "buffer"});
    }
    program_->target = "cuda:sm_90";
    program_->nodes.push_back({"node", "test.op", "net.py:7"});
    Method method{.name = "forward",
                  .commands = {},
                  .inputs = {},
                  .outputs = {},
                  .arena_bytes = 2 * (kCount * 4 + 64)};
    const auto spec = [](uint32_t buffer) {
      return TensorSpec{"tensor", buffer, DType::kFloat32, {kCount + 16}, {kCount + 16}};
    };
    method.inputs = {spec(0), spec(1), spec(2)};
    method.outputs = {spec(5)};
    program_->methods.push_back(method);
    kernel("copy", more);
    kernel("add", R"(, "operands": 3, "library": )" + library + more);
    command(0, {{0, Access::kRead, 0}, {3, Access::kWrite, 0}});
    command(1, {{3, Access::kRead, 0},
                {1, Access::kRead, offset},
                {4, Access::kWrite, 0},
                {2, Access::kRead, 0}});
    command(0, {{4, Access::kRead, 0}, {5, Access::kWrite, 0}});
  }
  std::shared_ptr<const Program> get() const { return program_; }

 private:
  void kernel(const std::string& entry, const std::string& more) {
    images_.push_back(stub_image(entry, kCount, more));
    program_->kernels.push_back({"kernel", "", images_.back()});
  }
  void command(uint32_t kernel, std::vector<Operand> operands) {
    operands_.push_back(std::move(operands));
    program_->methods[0].commands.push_back(
        {.kernel = kernel, .node = 0, .params = {}, .operands = operands_.back()});
  }

  std::deque<Bytes> images_;
  std::deque<std::vector<Operand>> operands_;
  std::shared_ptr<Program> program_ = std::make_shared<Program>();
};

// A program made ready, with its tensors.
class Run {
 public:
  explicit Run(const LibraryProgram& program)
      : device_(open_device("cuda")), executor_(program.get(), device_) {}

  Floats operator()(const Floats& x, const Floats& w, const Floats& bias = kBias) {
    const std::array<std::shared_ptr<Memory>, 4> fresh = {padded(x), padded(w), padded(bias),
                                                          padded({})};
    kept_.insert(kept_.end(), fresh.begin(), fresh.end());  // elsewhere than the ones before
    return again(executor_, fresh);
  }
  std::string who() const { return executor_.implementations(0)[1]; }
  Device& device() { return *device_; }
  Executor& executor() { return executor_; }
  std::shared_ptr<Memory> padded(Floats values) {
    values.resize(kCount + 16);
    return put(*device_, values);
  }

 private:
  Floats again(Executor& executor, const std::array<std::shared_ptr<Memory>, 4>& tensors) {
    std::vector<Binding> bindings;
    for (const auto& memory : tensors) {
      bindings.push_back(memory->range());
    }
    executor.run(0, std::span(bindings).first(3), std::span(bindings).subspan(3), nullptr);
    Floats y = get(*device_, *tensors[3]);
    y.resize(kCount);
    return y;
  }

  std::shared_ptr<Device> device_;
  Executor executor_;
  std::vector<std::shared_ptr<Memory>> kept_;
};

void takes_only_what_it_knows() {
  const Strings nowhere = {"/nowhere"};
  if (dlopen("libcudnn.so.9", RTLD_NOW) == nullptr) {
    check_refused(ErrorCode::kDevice,
                  "cuDNN was not found (libcudnn.so.9); npusim's own kernels do its work. Install "
                  "it: pip install nvidia-cudnn-cu12",
                  [&] { cuda::CudnnLibrary(nowhere, kCuda12); });
  }
  const auto folder =
      std::filesystem::temp_directory_path() / ("npusim-libraries-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const Strings wrong = {folder.string()};
  std::filesystem::copy_file(NPUSIM_STUB_CUDA, folder / "libcudnn.so.9");
  check_refused(ErrorCode::kDevice, "is no cuDNN 9: it has no cudnnCreate",
                [&] { cuda::CudnnLibrary(wrong, kCuda13); });
  std::filesystem::remove_all(folder);

  const Strings stubs = {NPUSIM_STUB_LIBRARIES};
  check(cuda::CublasLtLibrary(stubs, kCuda13).version_text() == "13.1.0", "version");
  const cuda::CudnnLibrary cudnn(stubs, kCuda13);
  check(cudnn.version_text() == "9.19.0", cudnn.version_text());
  check(cudnn.path() == std::string(NPUSIM_STUB_LIBRARIES) + "/libcudnn.so.9", cudnn.path());
  check_refused(ErrorCode::kDevice, "for CUDA 13.0; the driver is for CUDA 12.8",
                [&] { cuda::CudnnLibrary(stubs, kCuda12); });
  setenv("STUB_CUDNN_VERSION", "100200", 1);
  check_refused(ErrorCode::kDevice, "is cuDNN 10.2.0", [&] { cuda::CudnnLibrary(stubs, kCuda13); });
  unsetenv("STUB_CUDNN_VERSION");
  setenv("STUB_CUBLASLT_VERSION", "110500", 1);
  check_refused(ErrorCode::kDevice, "npusim uses versions from 12.0 on",
                [&] { cuda::CublasLtLibrary(stubs, kCuda13); });
  unsetenv("STUB_CUBLASLT_VERSION");
}

void computes_inside_the_graph() {
  Run run{LibraryProgram(products(kProduct))};
  check(run.who() == "cublaslt 13.1.0, plan 0", run.who());
  check(run(kX, kW) == product(kX, kW), "a product");
  const int made = calls("cuGraphInstantiate"), moved = calls("cuGraphExecChildGraphNodeSetParams");
  check(run(kW, kX) == product(kW, kX), "operands elsewhere");
  check(calls("cuGraphExecChildGraphNodeSetParams") == moved + 1,
        "the library's work was replaced");
  check(calls("cuGraphInstantiate") == made, "one graph");
  set("fail cuGraphExecChildGraphNodeSetParams", 910);
  check(run(kX, kW) == product(kX, kW), "another shape of work");
  set("fail cuGraphExecChildGraphNodeSetParams", 0);
  check(calls("cuGraphInstantiate") == made + 1, "the graph was made anew");
}

// A launch may overlap the one before it, but not a library's work.
void launches_wait_for_a_library() {
  const LibraryProgram program(products(kProduct), 0, R"(, "dependent": true)");
  Run run{program};
  const int before = calls("cuGraphAddDependencies");
  check(run(kX, kW) == product(kX, kW), "a product");
  check(calls("cuGraphAddDependencies") == before, "nothing overlaps the library");
  setenv("NPUSIM_CUDA_LIBRARIES", "off", 1);
  Run own{program};
  unsetenv("NPUSIM_CUDA_LIBRARIES");
  check(own(kX, kW) == sum(kX, kW), "own kernels");
  check(calls("cuGraphAddDependencies") == before + 2, "own kernels overlap");
}

void computes_command_by_command() {
  Run run{LibraryProgram(products(kProduct))};
  const auto x = run.padded(kX), w = run.padded(kW), y = run.padded({});
  const auto bytes = [](const Memory& m) { return m.range(); };
  const Binding in[] = {bytes(*x), bytes(*w), bytes(*w)}, out[] = {bytes(*y)};
  size_t seen = 0;
  run.executor().observe(0, in, out, nullptr, [&](size_t) { ++seen; });
  Floats found = get(run.device(), *y);
  found.resize(kCount);
  check(seen == 3 && found == product(kX, kW), "observed");
  std::vector<double> seconds(3);
  run.executor().time(0, in, out, nullptr, seconds);
  check(seconds[1] > 0, "timed");
}

void gives_the_library_its_own_operands() {
  const std::string biased = kProduct.substr(0, kProduct.size() - 1) + R"(, "bias": [3, 0, 0, 0]})";
  const LibraryProgram program(products(biased));
  Run run{program};
  check(run(kX, kW, kBias) == product(kX, kW, kBias), "with the bias");
  setenv("NPUSIM_CUDA_LIBRARIES", "off", 1);
  Run own{program};
  unsetenv("NPUSIM_CUDA_LIBRARIES");
  check(own.who().empty() && own(kX, kW, kBias) == sum(kX, kW), "switched off");
}

void leaves_to_kernels_what_it_has_no_plan_for() {
  const auto who = [](const std::string& library, int64_t offset = 0) {
    Run run{LibraryProgram(library, offset)};
    if (run.who().empty() && offset == 0) check(run(kX, kW) == sum(kX, kW), "the own kernel");
    return run.who();
  };
  const std::string thirteen =
      R"({"m": 1, "n": 13, "k": 1, "x": [0, 0, 1, 0], "w": [1, 0, 1, 0], "y": [2, 0, 13, 0]})";
  check(who(products(thirteen)).empty(), "no plan");
  check(who(products(kProduct), 8).empty(), "an operand off 16 bytes");
  const auto planned = [&](int plan, int version) {
    return who(products(kProduct, R"(, "plan": )" + std::to_string(plan) + R"(, "version": )" +
                                      std::to_string(version)));
  };
  check(planned(1, 130100) == "cublaslt 13.1.0, plan 1", "a plan that was measured");
  check(planned(1, 120000) == "cublaslt 13.1.0, plan 0", "of another version");
  check(planned(2, 130100).empty(), "a plan that is not there");
}

// Two images of 2 x 2 with 2 channels; windows of 3 x 3, padded by 1.
const std::string kConvolution = R"("batch": 2, "channels": 2, "out_channels": 2, "groups": 1,
  "w": 1, "in_size": [2, 2], "out_size": [2, 2], "kernel": [1, 1], "stride": [1, 1],
  "dilation": [1, 1], "pad": [0, 0], "x": [0, 8, 4, 2], "y": [2, 8, 4, 2])";

std::string convolution(const std::string& more = "", const std::string& around = "") {
  return R"({"name": "cudnn", "dtype": "float32", "convolution": {)" + kConvolution + more + "}" +
         around + "}";
}

void convolves() {
  Run run{LibraryProgram(convolution(R"(, "bias": 3)", R"(, "activation": "relu")"))};
  check(run.who() == "cudnn 9.19.0, plan 0", run.who());
  Floats expected;
  for (size_t i = 0; i < 8; ++i) {
    for (size_t c = 0; c < 2; ++c) {
      const float y = kX[2 * i] * kW[2 * c] + kX[2 * i + 1] * kW[2 * c + 1] + kBias[c];
      expected.push_back(std::max(y, 0.0F));
    }
  }
  check(run(kX, kW, kBias) == expected, "a pointwise convolution");
  check(run(kX, kW, kBias) == expected, "operands elsewhere");
  Run none{LibraryProgram(convolution("", R"(, "plan": 1, "version": 91900)"))};
  check(none.who().empty(), "only one configuration fits");
}

void refuses_hostile_problems() {
  const auto device = open_device("cuda");
  const auto refused = [&](const std::string& library, std::string_view words) {
    check_refused(ErrorCode::kFormat, words,
                  [&] { Executor(LibraryProgram(library).get(), device); });
  };
  const auto with = [](std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    check(at != text.npos, from);
    return text.replace(at, from.size(), to);
  };
  refused("[]", "kernel 1");
  refused(R"({"name": "cublas", "dtype": "float32"})", "a library has no 'cublas'");
  refused(R"({"name": "cublaslt", "dtype": "float32"})", "the others products");
  refused(with(products(kProduct), "cublaslt", "cudnn"), "cudnn computes a convolution");
  refused(products(kProduct, R"(, "name": "cudnn")"), "appears twice");
  refused(products(with(kProduct, R"("m": 4)", R"("m": 0)")), "an empty product");
  refused(products(with(kProduct, R"("k": 4, )", "")), "there is no k");
  refused(products(with(kProduct, R"("m": 4)", R"("m": 9)")), "passes the end of its operand");
  refused(products(with(kProduct, "[1, 0, 4, 0]", "[1, 0, 3, 0]")), "rows overlap");
  refused(products(with(kProduct, "[1, 0, 4, 0]", "[1, 30, 4, 0]")), "passes the end");
  refused(products(with(kProduct, "[1, 0, 4, 0]", "[9, 0, 4, 0]")), "there is no such operand");
  refused(products(with(kProduct, "[1, 0, 4, 0]", "[1, 0, 4]")), "expected 4 numbers");
  const std::string huge = std::to_string(int64_t{1} << 40);
  refused(products(with(kProduct, R"("m": 4)", R"("m": )" + huge)), "passes the end");
  refused(products(with(with(kProduct, R"("m": 4)", R"("m": )" + huge), "[0, 0, 4, 0]",
                        "[0, 0, " + huge + ", 0]")),
          "passes the end");
  refused(products(with(kProduct, R"("m": 4)", R"("m": 9223372036854775807)")), "too large");
  std::string many = kProduct;
  for (int i = 0; i < 16; ++i) many += ", " + kProduct;
  refused(products(many), "too many products");
  const auto bent = [&](const std::string& from, const std::string& to, std::string_view words) {
    refused(with(convolution(), from, to), words);
  };
  bent(R"("stride": [1, 1])", R"("stride": [0, 1])", "do not fit together");
  bent(R"("groups": 1)", R"("groups": 3)", "do not fit together");
  bent(R"("out_size": [2, 2])", R"("out_size": [1, 1])", "do not fit together");
  bent(R"("batch": 2)", R"("batch": 5)", "a tensor passes the end");
  bent(R"("kernel": [1, 1])", R"("kernel": [5, 5])", "the weights pass the end");
  bent(R"("w": 1)", R"("w": 7)", "there is no such operand");
}

// Headers with some bytes overwritten: refused, or run inside operands of exactly their size.
void survives_damaged_problems() {
  std::mt19937 random(7);
  const auto device = open_device("cuda");
  const std::string sound[] = {products(kProduct + ", " + kProduct), convolution()};
  constexpr std::string_view kBytes = R"(0123456789[]{}",:-e )";
  int accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text = sound[i % 2];
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      text[random() % text.size()] = kBytes[random() % kBytes.size()];
    }
    try {
      const Executor executor(LibraryProgram(text).get(), device);
      accepted += executor.implementations(0)[1].empty() ? 0 : 1;
    } catch (const Error& error) {
      check(error.code() == ErrorCode::kFormat, error.what());
    }
  }
  check(accepted > 0, "some still name a problem");
}

}  // namespace
}  // namespace npusim::tests

int main() {
  setenv("NPUSIM_CUDA_DRIVER", NPUSIM_STUB_CUDA, 1);
  unsetenv("NPUSIM_CUDA_LIBRARIES");
  using namespace npusim::tests;
  takes_only_what_it_knows();
  setenv("NPUSIM_CUDA_PATH", NPUSIM_STUB_LIBRARIES, 1);
  computes_inside_the_graph();
  launches_wait_for_a_library();
  computes_command_by_command();
  gives_the_library_its_own_operands();
  leaves_to_kernels_what_it_has_no_plan_for();
  convolves();
  refuses_hostile_problems();
  survives_damaged_problems();
  return exit_code();
}
