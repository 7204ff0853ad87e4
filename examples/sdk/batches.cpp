// Batches of any size on several threads: each has an executor, all share program and weights.
//
//   batches PROGRAM.npubin WEIGHTS THREADS BATCHES
//
// The program has one float32 input whose first dimension calls choose, such as a model that was
// imported from ONNX with a free batch. Every row of every batch is computed alone as well, and the
// program says how far the two are apart.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <npusim/npusim.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Model {
  npusim::Device device;
  npusim::Program program;
  npusim::Weights weights;

  // A thread a device: the parallel work is that of the callers.
  Model(const std::string& path, const std::string& checkpoint)
      : device("cpu", {{"threads", "1"}}), program(path), weights(program, device, checkpoint) {}
};

// Numbers of one row of a tensor.
size_t row_size(const npusim_tensor_info& tensor) {
  size_t size = 1;
  for (size_t axis = 1; axis < tensor.rank; ++axis) size *= static_cast<size_t>(tensor.shape[axis]);
  return size;
}

std::vector<float> run(const Model& model, const npusim::Executor& executor,
                       std::vector<float>& rows, int64_t batch) {
  const npusim_tensor_info in = model.program.input(0), out = model.program.output(0);
  npusim::Shape in_shape(in.shape, in.shape + in.rank), out_shape(out.shape, out.shape + out.rank);
  in_shape[0] = out_shape[0] = batch;
  std::vector<float> result(row_size(out) * static_cast<size_t>(batch));
  executor.call({{rows.data(), in_shape}}, {{result.data(), out_shape}}, &model.weights);
  return result;
}

// The greatest difference between batches and their rows alone.
double work(const Model& model, unsigned seed, int batches) {
  const npusim::Executor executor(model.program, model.device);
  const npusim_symbol size = model.program.symbol(0);
  const size_t in = row_size(model.program.input(0)), out = row_size(model.program.output(0));
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(0, 1);
  double furthest = 0;
  for (int i = 0; i < batches; ++i) {
    const int64_t batch = std::uniform_int_distribution<int64_t>(size.low, size.high)(random);
    std::vector<float> rows(in * static_cast<size_t>(batch));
    for (float& value : rows) value = values(random);
    const std::vector<float> together = run(model, executor, rows, batch);
    for (size_t row = 0; row < static_cast<size_t>(batch); ++row) {
      std::vector<float> one(rows.begin() + static_cast<long>(row * in),
                             rows.begin() + static_cast<long>((row + 1) * in));
      const std::vector<float> alone = run(model, executor, one, 1);
      for (size_t at = 0; at < out; ++at) {
        const double apart = std::abs(together[row * out + at] - alone[at]);
        if (!(apart <= furthest)) furthest = apart;  // NaN counts
      }
    }
  }
  return furthest;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: batches PROGRAM.npubin WEIGHTS THREADS BATCHES\n");
    return 2;
  }
  try {
    const Model model(arguments[1], arguments[2]);
    const int threads = std::atoi(arguments[3]), batches = std::atoi(arguments[4]);
    std::vector<double> furthest(static_cast<size_t>(threads > 0 ? threads : 0), HUGE_VAL);
    std::atomic<bool> failed{false};
    std::vector<std::thread> workers;
    for (size_t i = 0; i < furthest.size(); ++i) {
      workers.emplace_back([&, i] {
        try {
          furthest[i] = work(model, static_cast<unsigned>(i), batches);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "error: %s\n", error.what());
          failed = true;
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
    if (failed) return 2;
    double most = 0;
    for (const double apart : furthest) most = apart <= most ? most : apart;
    std::printf("%d threads, %d batches each; rows alone differ by %.1e at most\n", threads,
                batches, most);
    return most < 1e-4 ? 0 : 1;
  } catch (const npusim::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
