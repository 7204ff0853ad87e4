// States of the C interface.
#include "cpp/runtime/state.h"

#include <string>

#include "cpp/c_api/objects.h"

namespace npusim::c_api {
namespace {

void require_bytes(const StateTensor& tensor, size_t bytes) {
  const int64_t needed = dense_bytes(tensor.shape, tensor.dtype);
  if (static_cast<int64_t>(bytes) == needed) return;
  throw Error(ErrorCode::kInput, "the state " + tensor.name + " has " + std::to_string(needed) +
                                     " bytes, got " + std::to_string(bytes));
}

const StateTensor& named(StateObject& held, const char* name) {
  if (held.tensors.empty()) held.tensors = read_metadata(*held.state->program()).states;
  return find_state(held.tensors, text(name, "name"));
}

}  // namespace
}  // namespace npusim::c_api

using namespace npusim;
using namespace npusim::c_api;

void npusim_state_free(npusim_state* state) {
  free_handle(state);
}

npusim_status npusim_state_create(npusim_program* program, npusim_device* device,
                                  npusim_state** state) {
  return guarded([&] {
    require(state, "state");
    auto made = std::make_shared<StateObject>();
    made->state = std::make_shared<State>(object(program)->program, object(device)->device);
    give(state, std::move(made));
  });
}

npusim_status npusim_state_copy(npusim_state* handle, npusim_state** copy) {
  return guarded([&] {
    const auto held = object(handle);
    require(copy, "copy");
    const Turn turn(held->turn, kStateBusy);
    auto made = std::make_shared<StateObject>();
    made->state = held->state->copy();
    give(copy, std::move(made));
  });
}

npusim_status npusim_state_read(npusim_state* handle, const char* name, void* data, size_t bytes) {
  return guarded([&] {
    const auto held = object(handle);
    const Turn turn(held->turn, kStateBusy);
    const StateTensor& tensor = named(*held, name);
    require_bytes(tensor, bytes);
    held->state->read(tensor.buffer, 0, elements(static_cast<std::byte*>(data), bytes, "data"));
  });
}

npusim_status npusim_state_write(npusim_state* handle, const char* name, const void* data,
                                 size_t bytes) {
  return guarded([&] {
    const auto held = object(handle);
    const Turn turn(held->turn, kStateBusy);
    held->state->require_one_rank();
    const StateTensor& tensor = named(*held, name);
    require_bytes(tensor, bytes);
    held->state->write(tensor.buffer, 0,
                       elements(static_cast<const std::byte*>(data), bytes, "data"));
  });
}
