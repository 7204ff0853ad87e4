// Weights of the C interface.
#include "cpp/runtime/weights.h"

#include <string>
#include <utility>

#include "cpp/c_api/objects.h"
#include "cpp/runtime/held_tensors.h"

namespace npusim::c_api {
namespace {

Weights::Options parse_options(const npusim_weights_options* given) {
  const npusim_weights_options known = read_struct(given, "npusim_weights_options");
  Weights::Options options{
      .check_nan = known.check_nan != 0, .copy = known.copy != 0, .names = {}, .progress = {}};
  for (const npusim_renaming& it :
       read_structs(known.renamings, known.renaming_count, "renamings")) {
    options.names.emplace_back(text_or_empty(it.program_prefix),
                               text_or_empty(it.checkpoint_prefix));
  }
  if (known.progress != nullptr) {
    options.progress = [known](int64_t done, int64_t total) {
      if (call_back(known.progress, known.context, done, total) != 0) {
        throw_cancelled("its progress callback asked for it");
      }
    };
  }
  return options;
}

std::shared_ptr<WeightsObject> load(npusim_program* program, npusim_device* device,
                                    std::shared_ptr<const TensorSource> source,
                                    const Weights::Options& options) {
  auto made = std::make_shared<WeightsObject>();
  if (const auto file = source->file()) made->origin.checkpoint = file->path;
  made->origin.names = options.names;
  made->origin.checked_nan = options.check_nan;
  made->weights =
      Weights::load(object(program)->program, object(device)->device, std::move(source), options);
  for (const std::string& name : made->weights->extra()) made->extra.push_back(name.c_str());
  return made;
}

CheckpointTensor held_tensor(const npusim_tensor& given) {
  const DType dtype = checked_dtype(given.dtype);
  const auto bytes = elements(static_cast<const std::byte*>(given.data), given.bytes, "data");
  CheckpointTensor tensor{.name = text(given.name, "the name of a tensor"),
                          .dtype_name = std::string(dtype_name(dtype)),
                          .dtype = dtype,
                          .shape = checked_shape(given.shape, given.rank),
                          .data = bytes};
  if (static_cast<int64_t>(bytes.size()) != dense_bytes(tensor.shape, dtype)) {
    throw Error(ErrorCode::kInput, "the tensor " + tensor.name + " has " +
                                       std::to_string(bytes.size()) + " bytes, its shape " +
                                       std::to_string(dense_bytes(tensor.shape, dtype)));
  }
  return tensor;
}

}  // namespace
}  // namespace npusim::c_api

using namespace npusim;
using namespace npusim::c_api;

void npusim_weights_free(npusim_weights* weights) {
  free_handle(weights);
}

npusim_status npusim_weights_open(npusim_program* program, npusim_device* device, const char* path,
                                  const npusim_weights_options* options, npusim_weights** weights) {
  return guarded([&] {
    require(weights, "weights");
    object(program), object(device);  // before a file is opened
    give(weights,
         load(program, device, open_checkpoint(path_argument(path)), parse_options(options)));
  });
}

npusim_status npusim_weights_from_tensors(npusim_program* program, npusim_device* device,
                                          const npusim_tensor* tensors, size_t count,
                                          const npusim_weights_options* options,
                                          npusim_release release, void* context,
                                          npusim_weights** weights) {
  return guarded([&] {
    std::shared_ptr<const void> owner = owner_of(release, context);
    require(weights, "weights");
    std::vector<CheckpointTensor> held;
    for (const npusim_tensor& tensor : read_structs(tensors, count, "tensors")) {
      held.push_back(held_tensor(tensor));
    }
    auto source = std::make_shared<HeldTensors>(std::move(held), std::move(owner));
    give(weights, load(program, device, std::move(source), parse_options(options)));
  });
}

npusim_status npusim_weights_get_info(npusim_weights* handle, npusim_weights_info* info) {
  return guarded([&] {
    const auto held = object(handle);
    write_struct(info,
                 {.struct_size = 0,
                  .extra_count = held->extra.size(),
                  .extra = held->extra.data(),
                  .in_place = held->weights->in_place(),
                  .reserved = 0,
                  .note = held->weights->note().c_str()},
                 "npusim_weights_info");
  });
}

npusim_status npusim_weights_pack(npusim_weights* handle, const char* path) {
  return guarded([&] {
    const auto held = object(handle);
    pack_weights(*held->weights, path_argument(path), held->origin);
  });
}

npusim_status npusim_weights_check(npusim_weights* handle) {
  return guarded([&] { object(handle)->weights->check_now(); });
}
