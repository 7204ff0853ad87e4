#include "cpp/runtime/state.h"

#include <atomic>

#include "cpp/runtime/arenas.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/error.h"

namespace npusim {
namespace {

uint64_t next_serial() {
  static std::atomic<uint64_t> latest{0};
  return ++latest;
}

}  // namespace

State::State(std::shared_ptr<const Program> program, std::shared_ptr<Device> device)
    : program_(std::move(program)),
      device_(admit(std::move(device), *program_)),
      memory_(arena_on(*device_, BufferKind::kState, program_->state_bytes)),
      serial_(next_serial()) {}

std::shared_ptr<State> State::copy() const {
  auto twin = std::make_shared<State>(program_, device_);
  for (uint32_t i = 0; i < program_->buffers.size(); ++i) {
    const Buffer& buffer = program_->buffers[i];
    if (buffer.kind == BufferKind::kState) twin->copy_from(*this, i, 0, buffer.bytes);
  }
  return twin;
}

int64_t State::place(uint32_t index, int64_t offset, int64_t bytes) const {
  const bool is_state =
      index < program_->buffers.size() && program_->buffers[index].kind == BufferKind::kState;
  if (!is_state) {
    throw Error(ErrorCode::kInput, "buffer " + std::to_string(index) + " is no state");
  }
  const Buffer& buffer = program_->buffers[index];
  if (offset < 0 || bytes < 0 || offset > buffer.bytes || bytes > buffer.bytes - offset) {
    throw Error(ErrorCode::kInput, std::to_string(bytes) + " bytes from " + std::to_string(offset) +
                                       " on pass the end of state " + std::string(buffer.name) +
                                       ", which has " + std::to_string(buffer.bytes));
  }
  return buffer.offset + offset;
}

MemoryRange State::range(uint32_t buffer) const {
  const int64_t at = place(buffer, 0, 0);
  return memory_->range().part(at, program_->buffers[buffer].bytes);
}

void State::require_one_rank() const {
  if (program_->ranks == 1) return;
  throw Error(ErrorCode::kInput, "each of the program's " + std::to_string(program_->ranks) +
                                     " ranks has a part of the state: it is neither read, saved "
                                     "nor set");
}

void State::read(uint32_t buffer, int64_t offset, std::span<std::byte> to) const {
  require_one_rank();
  const int64_t at = place(buffer, offset, static_cast<int64_t>(to.size()));
  if (!to.empty()) device_->download(to, *memory_, at);
}

void State::write(uint32_t buffer, int64_t offset, std::span<const std::byte> from) {
  const int64_t at = place(buffer, offset, static_cast<int64_t>(from.size()));
  if (!from.empty()) device_->upload(*memory_, at, from);
}

void State::copy_from(const State& other, uint32_t buffer, int64_t offset, int64_t bytes) {
  if (other.program_ != program_ || other.device_ != device_) {
    throw Error(ErrorCode::kInput, "the states belong to different programs or devices");
  }
  const int64_t at = place(buffer, offset, bytes);
  if (bytes == 0) return;
  device_->copy(*memory_, at, *other.memory_, at, bytes);
}

}  // namespace npusim
