// Executors of the C interface: runs over buffers, and calls over tensors of the host.
#include "cpp/runtime/executor.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "cpp/c_api/objects.h"
#include "cpp/runtime/sized_program.h"

namespace npusim::c_api {
namespace {

// What a run is given besides its tensors; keeps it alive while it runs.
struct Run {
  npusim_run_options options;
  std::shared_ptr<WeightsObject> weights;
  std::shared_ptr<StateObject> state;
  std::optional<Turn> state_turn = {};

  explicit Run(const npusim_run_options* given)
      : options(read_struct(given, "npusim_run_options")),
        weights(object_or_null(options.weights)),
        state(object_or_null(options.state)) {
    const int ways =
        (options.after_command != nullptr) + (options.seconds != nullptr) + (options.enqueue != 0);
    if (ways > 1) {
      throw Error(ErrorCode::kInput, "enqueue, after_command and seconds exclude each other");
    }
    if (ways == 1 && options.enqueue == 0 && options.stream != 0) {
      throw Error(ErrorCode::kInput, "a run that is watched goes by the device's own stream");
    }
    if (state != nullptr) state_turn.emplace(state->turn, kStateBusy);
  }
};

void execute(Executor& executor, size_t method, const Buffers& inputs, const Buffers& outputs,
             const Run& run, std::span<const int64_t> sizes) {
  const std::vector<Binding> in = input_bindings(executor, inputs);
  const std::vector<Binding> out = output_bindings(executor, outputs);
  const Weights* weights = run.weights == nullptr ? nullptr : run.weights->weights.get();
  State* state = run.state == nullptr ? nullptr : run.state->state.get();
  const npusim_run_options& options = run.options;
  if (options.seconds != nullptr) {
    const auto seconds = elements(options.seconds, options.second_count, "seconds");
    executor.time(method, in, out, weights, seconds, state, sizes);
  } else if (options.after_command != nullptr) {
    const auto after = [&](size_t command) {
      if (call_back(options.after_command, options.context, command) != 0) {
        throw_cancelled("its after_command asked for it");
      }
    };
    executor.observe(method, in, out, weights, after, state, sizes);
  } else {
    executor.enqueue(method, in, out, weights, state, options.stream, sizes);
    if (options.enqueue == 0) executor.settle(method);
  }
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// The tensors in the order of the specs; nothing where an output was left out, by name.
using Given = std::vector<std::optional<npusim_tensor>>;

Given in_order(const npusim_tensor* tensors, size_t count, const std::vector<TensorSpec>& specs,
               const char* what) {
  const std::vector<npusim_tensor> given = read_structs(tensors, count, what);
  const auto has_name = [](const npusim_tensor& tensor) { return tensor.name != nullptr; };
  const bool named = !given.empty() && std::all_of(given.begin(), given.end(), has_name);
  if (!named && std::any_of(given.begin(), given.end(), has_name)) {
    throw Error(ErrorCode::kInput, std::string(what) + ": some have a name; all or none have");
  }
  if (!named && given.size() != specs.size()) {
    throw Error(ErrorCode::kInput, "the method has " + std::to_string(specs.size()) + " " + what +
                                       ", got " + std::to_string(given.size()));
  }
  Given out(specs.size());
  for (size_t i = 0; i < given.size(); ++i) {
    std::optional<npusim_tensor>& place = out[named ? spec_index(specs, given[i].name) : i];
    if (place) {
      throw Error(ErrorCode::kInput, std::string(what) + ": " + given[i].name + " comes twice");
    }
    place = given[i];
  }
  return out;
}

// The memory of a tensor that has to be as the spec says.
std::span<std::byte> checked(const npusim_tensor& given, const TensorSpec& spec, bool is_output) {
  const std::string name(spec.name);
  if (given.dtype != static_cast<npusim_dtype>(spec.dtype)) {
    throw Error(ErrorCode::kInput, name + " is " + std::string(dtype_name(spec.dtype)) + ", got " +
                                       std::string(dtype_name(checked_dtype(given.dtype))));
  }
  const bool any_shape = is_output && given.shape == nullptr;
  if (!any_shape && checked_shape(given.shape, given.rank) != spec.shape) {
    throw Error(ErrorCode::kInput, name + " has the shape " + shape_text(spec.shape) + ", got " +
                                       shape_text(checked_shape(given.shape, given.rank)));
  }
  const auto needed = static_cast<size_t>(dense_bytes(spec.shape, spec.dtype));
  if (is_output ? given.bytes < needed : given.bytes != needed) {
    throw Error(ErrorCode::kInput, name + " has " + std::to_string(needed) + " bytes, got " +
                                       std::to_string(given.bytes));
  }
  return elements(static_cast<std::byte*>(given.data), needed, "data");
}

// A tensor of the caller as a buffer: where it lies, or as a copy.
class Place {
 public:
  Place(const std::shared_ptr<Device>& device, const TensorSpec& spec,
        const std::optional<npusim_tensor>& given, bool is_output)
      : is_output_(is_output) {
    if (given) bytes_ = checked(*given, spec, is_output);
    const bool in_place = given && spec.shape == spec.alloc_shape &&
                          device->addressing() == Addressing::kHost &&
                          reinterpret_cast<uintptr_t>(bytes_.data()) % device->alignment() == 0;
    if (in_place) {
      buffer_ = std::make_shared<DeviceBuffer>(
          buffer_over_host(device, spec.dtype, spec.shape, bytes_, true, nullptr, false));
    } else {
      buffer_ = std::make_shared<DeviceBuffer>(
          allocate_buffer(device, spec.dtype, spec.shape, spec.alloc_shape, false));
      copied_ = given.has_value();
      if (copied_ && !is_output) write_dense(*buffer_, bytes_);
    }
  }
  const std::shared_ptr<DeviceBuffer>& buffer() const { return buffer_; }
  void finish() const {
    if (copied_ && is_output_) read_dense(*buffer_, bytes_);
  }

 private:
  bool is_output_, copied_ = false;
  std::span<std::byte> bytes_;
  std::shared_ptr<DeviceBuffer> buffer_;
};

std::vector<Shape> shapes_of(const Given& inputs, const std::vector<TensorSpec>& specs) {
  std::vector<Shape> shapes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) {
      throw Error(ErrorCode::kInput, "the input " + std::string(specs[i].name) + " is missing");
    }
    shapes.push_back(checked_shape(inputs[i]->shape, inputs[i]->rank));
  }
  return shapes;
}

void call(ExecutorObject& held, size_t index, const npusim_tensor* inputs, size_t input_count,
          const npusim_tensor* outputs, size_t output_count, const Run& run) {
  if (run.options.enqueue != 0 || run.options.size_count != 0) {
    throw Error(ErrorCode::kInput,
                "a call waits, and takes its sizes from the inputs: leave enqueue and sizes zero");
  }
  const Program& whole = held.executor.program();
  if (index >= whole.methods.size()) {
    throw Error(ErrorCode::kInput, "there is no method " + std::to_string(index) +
                                       "; the program has " + std::to_string(whole.methods.size()));
  }
  const Method& general = whole.methods[index];
  const Given in = in_order(inputs, input_count, general.inputs, "inputs");
  const Given out = in_order(outputs, output_count, general.outputs, "outputs");
  const std::vector<int64_t> sizes = symbols_of(general, shapes_of(in, general.inputs));
  const auto program = held.executor.prepare(index, sizes);
  const Method& method = program.get() == &whole ? general : program->methods.front();
  std::vector<Place> in_places, out_places;
  Buffers in_buffers, out_buffers;
  for (size_t i = 0; i < in.size(); ++i) {
    in_places.emplace_back(held.device, method.inputs[i], in[i], false);
    in_buffers.push_back(in_places.back().buffer());
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out_places.emplace_back(held.device, method.outputs[i], out[i], true);
    out_buffers.push_back(out_places.back().buffer());
  }
  execute(held.executor, index, in_buffers, out_buffers, run, sizes);
  for (const Place& place : out_places) place.finish();
}

Buffers buffers_of(npusim_buffer* const* handles, size_t count, const char* name) {
  Buffers out;
  for (npusim_buffer* handle : elements(handles, count, name)) {
    out.push_back(object(handle)->buffer);
  }
  return out;
}

}  // namespace
}  // namespace npusim::c_api

using namespace npusim;
using namespace npusim::c_api;

void npusim_executor_free(npusim_executor* executor) {
  free_handle(executor);
}

npusim_status npusim_executor_create(npusim_program* program, npusim_device* device,
                                     npusim_executor** executor) {
  return guarded([&] {
    require(executor, "executor");
    auto made = std::make_shared<ExecutorObject>(object(program)->program, object(device)->device);
    for (size_t i = 0; i < made->executor.program().methods.size(); ++i) {
      made->implementations.push_back(made->executor.implementations(i));
    }
    give(executor, std::move(made));
  });
}

npusim_status npusim_executor_call(npusim_executor* executor, size_t method,
                                   const npusim_tensor* inputs, size_t input_count,
                                   const npusim_tensor* outputs, size_t output_count,
                                   const npusim_run_options* options) {
  return guarded([&] {
    const auto held = object(executor);
    call(*held, method, inputs, input_count, outputs, output_count, Run(options));
  });
}

npusim_status npusim_executor_run(npusim_executor* executor, size_t method,
                                  npusim_buffer* const* inputs, size_t input_count,
                                  npusim_buffer* const* outputs, size_t output_count,
                                  const npusim_run_options* options) {
  return guarded([&] {
    const auto held = object(executor);
    const Run run(options);
    execute(held->executor, method, buffers_of(inputs, input_count, "inputs"),
            buffers_of(outputs, output_count, "outputs"), run,
            elements(run.options.sizes, run.options.size_count, "sizes"));
  });
}

npusim_status npusim_executor_settle(npusim_executor* executor, size_t method) {
  return guarded([&] { object(executor)->executor.settle(method); });
}

npusim_status npusim_executor_prepare(npusim_executor* executor, size_t method,
                                      const int64_t* sizes, size_t size_count) {
  return guarded([&] {
    const auto held = object(executor);
    held->executor.prepare(method, elements(sizes, size_count, "sizes"));
  });
}

npusim_status npusim_executor_implementation(npusim_executor* executor, size_t method,
                                             size_t command, const char** name) {
  return guarded([&] {
    const auto held = object(executor);
    require(name, "name");
    const auto& all = held->implementations;
    if (method >= all.size() || command >= all[method].size()) {
      throw Error(ErrorCode::kInput, "there is no such method or command");
    }
    *name = all[method][command].c_str();
  });
}

npusim_status npusim_executor_read_buffer(npusim_executor* executor, uint32_t buffer, void* data,
                                          size_t bytes, size_t* needed) {
  return guarded([&] {
    const auto held = object(executor);
    const auto to = elements(static_cast<std::byte*>(data), bytes, "data");
    const std::optional<Binding> at = held->executor.buffer(buffer);
    const size_t size = at ? static_cast<size_t>(at->bytes) : 0;
    const size_t read = std::min(size, to.size());
    if (read > 0) {
      held->device->download(to.first(read), at->part(0, static_cast<int64_t>(read)));
    }
    if (needed != nullptr) *needed = size;
  });
}

npusim_status npusim_executor_write_buffer(npusim_executor* executor, uint32_t buffer,
                                           const void* data, size_t bytes) {
  return guarded([&] {
    const auto held = object(executor);
    const auto from = elements(static_cast<const std::byte*>(data), bytes, "data");
    held->executor.write_buffer(buffer, from);
  });
}
npusim_status npusim_executor_reset(npusim_executor* executor) {
  return guarded([&] {
    const auto held = object(executor);
    held->executor.set_own_state(
        std::make_shared<State>(held->executor.shared_program(), held->device));
  });
}
