// The objects behind handles: the runtime's own, with the texts that callers are shown of them.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/c_api/call.h"
#include "cpp/runtime/device_buffer.h"
#include "cpp/runtime/executor.h"
#include "cpp/runtime/metadata.h"
#include "cpp/runtime/packed_weights.h"
#include "cpp/runtime/state.h"
#include "cpp/runtime/turn.h"
#include "cpp/runtime/weights.h"

namespace npusim::c_api {

// Texts that end with NUL and stay where they are.
class Texts {
 public:
  const char* add(std::string_view text) { return texts_.emplace_back(text).c_str(); }

 private:
  std::deque<std::string> texts_;
};

struct DeviceObject {
  std::shared_ptr<Device> device;
  std::string name, kind, description;
};

// A tensor of a program as npusim_tensor_info shows it.
struct TensorFacts {
  const char* name;
  std::vector<int64_t> shape;
  std::vector<const char*> dims;
  DType dtype;
  int64_t bytes;
};

struct MethodFacts {
  const char* name;
  std::vector<TensorFacts> inputs, outputs;
  std::vector<const char*> symbols;
};

struct ProgramObject {
  explicit ProgramObject(std::shared_ptr<const Program> given);
  // Throws Error(kInput).
  const Method& method(size_t index) const;

  std::shared_ptr<const Program> program;
  Texts texts;
  const char *target, *metadata;
  std::vector<MethodFacts> methods;
  std::vector<TensorFacts> weights, states;
  std::vector<const char*> kernels;
  struct Node {
    const char *name, *op, *source;
  };
  std::vector<Node> nodes;
};

struct WeightsObject {
  std::shared_ptr<const Weights> weights;
  PackedOrigin origin = {};  // what npusim_weights_pack notes
  std::vector<const char*> extra = {};
};

struct StateObject {
  std::shared_ptr<State> state;
  std::vector<StateTensor> tensors;
  TurnFlag turn{0};
};
inline constexpr const char* kStateBusy = "this state is in use by another call";

struct BufferObject {
  std::shared_ptr<DeviceBuffer> buffer;
};

struct ExecutorObject {
  ExecutorObject(std::shared_ptr<const Program> program, std::shared_ptr<Device> on)
      : device(std::move(on)), executor(std::move(program), device) {}
  std::shared_ptr<Device> device;
  Executor executor;
  std::vector<std::vector<std::string>> implementations = {};  // by method, by command
};

// The methods' specs at values of the symbols; `prepared` is what Executor::prepare or at_sizes
// gave.
const std::vector<TensorSpec>& specs_of(const Method& method, npusim_side side);

DType checked_dtype(npusim_dtype dtype);
std::vector<int64_t> checked_shape(const int64_t* shape, size_t rank);
std::optional<bool> copy_rule(npusim_copy copy);

// All elements of a buffer, dense, from and to the host.
void write_dense(DeviceBuffer& buffer, std::span<const std::byte> from);
void read_dense(const DeviceBuffer& buffer, std::span<std::byte> to);

}  // namespace npusim::c_api
