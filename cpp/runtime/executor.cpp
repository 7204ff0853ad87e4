// Invariants:
//
//  1. From construction on, every kTemp and kConstant buffer is bound in every list.
//  2. A list's kWeight and kPersistent buffers belong to the weights whose serial it notes, its
//     kState buffers to the state whose serial it notes.
//  3. kInput and kOutput buffers are bound anew by every run; binding where they were already costs
//     a comparison.
//  4. While running_ is set, one thread alone touches places_ and methods_.
//  5. A method with symbolic sizes is run as the static program that it is at the sizes of the
//     call. The list at its greatest sizes is made at construction, so that what cannot run fails
//     there.
#include "cpp/runtime/executor.h"

#include <algorithm>
#include <optional>
#include <string>

#include "cpp/runtime/arenas.h"
#include "cpp/runtime/declared_memory.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/sized_program.h"
#include "cpp/runtime/turn.h"

namespace npusim {
namespace {

constexpr size_t kKeptSizes = 24;  // besides the greatest, of a method with symbolic sizes

constexpr const char* kBusy =
    "this executor is running on another thread; give each thread an executor of its own (they can "
    "share weights), or take turns";

// Gives outputs that lie where an input lies memory of their own, and copies them back after the
// run: a method may write an output before it has read all of its inputs.
class Detour {
 public:
  Detour(Device& device, std::span<const Binding> inputs, std::span<const Binding> outputs)
      : device_(device), wanted_(outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto shared = [&](const Binding& other) { return outputs[i].overlaps(other); };
      if (std::any_of(outputs.begin() + static_cast<ptrdiff_t>(i) + 1, outputs.end(), shared)) {
        throw Error(ErrorCode::kInput, "two outputs lie in the same memory; give each its own");
      }
      if (std::any_of(inputs.begin(), inputs.end(), shared)) redirect(i);
    }
  }
  std::span<const Binding> outputs() const {
    return replaced_.empty() ? wanted_ : std::span<const Binding>(replaced_);
  }
  bool empty() const { return detoured_.empty(); }
  void finish() {
    for (const auto& [index, memory] : detoured_) device_.copy(wanted_[index], memory->range());
  }

 private:
  void redirect(size_t index) {
    if (replaced_.empty()) replaced_.assign(wanted_.begin(), wanted_.end());
    auto memory = device_.allocate(wanted_[index].bytes);
    replaced_[index] = memory->range();
    detoured_.emplace_back(index, std::move(memory));
  }

  Device& device_;
  std::span<const Binding> wanted_;
  std::vector<Binding> replaced_;
  std::vector<std::pair<size_t, std::shared_ptr<Memory>>> detoured_;
};

int64_t largest_arena(const Program& program) {
  int64_t bytes = 0;
  for (const Method& method : program.methods) bytes = std::max(bytes, method.arena_bytes);
  return bytes;
}

}  // namespace

Executor::Executor(std::shared_ptr<const Program> program, std::shared_ptr<Device> device)
    : program_(std::move(program)),
      device_(admit(std::move(device), *program_)),
      constants_(constants_on(*device_, program_)),
      arena_(arena_on(*device_, BufferKind::kTemp, largest_arena(*program_))),
      places_(program_->buffers.size()),
      streams_(device_->streams()),
      own_queue_(streams_ == nullptr ? 0 : streams_->stream()),
      queue_(own_queue_) {
  const std::pair<BufferKind, const Memory&> arenas[] = {{BufferKind::kConstant, *constants_},
                                                         {BufferKind::kTemp, *arena_}};
  for (size_t i = 0; i < program_->methods.size(); ++i) {
    std::vector<int64_t> greatest;
    for (const Symbol& symbol : program_->methods[i].sizes.symbols) greatest.push_back(symbol.high);
    std::vector<Encoded>& known = methods_.emplace_back().known;
    known.reserve(kKeptSizes + 1);  // can_fail reads the first one at any time: it never moves
    known.push_back(encode(i, greatest));
  }
  for (uint32_t i = 0; i < places_.size(); ++i) {
    const Buffer& buffer = program_->buffers[i];
    for (const auto& [kind, arena] : arenas) {
      const bool lies_there = buffer.offset + buffer.bytes <= arena.bytes();  // not one of init's
      if (buffer.kind == kind && lies_there) {
        places_[i] = arena.range().part(buffer.offset, buffer.bytes);
      }
    }
    if (buffer.kind == BufferKind::kWeight || buffer.kind == BufferKind::kPersistent) {
      weight_buffers_.push_back(i);
    }
    if (buffer.kind == BufferKind::kState) state_buffers_.push_back(i);
  }
  if (program_->weights.empty() && !weight_buffers_.empty()) {
    own_weights_ = Weights::load(program_, device_, no_tensors(), {});
  }
}

// The method at these sizes, with everything bound that stays where it is.
Executor::Encoded Executor::encode(size_t method, std::span<const int64_t> sizes) {
  Encoded encoded;
  encoded.sizes.assign(sizes.begin(), sizes.end());
  const bool fixed = program_->methods[method].sizes.symbols.empty() && sizes.empty();
  if (!fixed) encoded.sized = at_sizes(program_, method, sizes);
  encoded.list = list_for(encoded, method);
  bind_arena(*encoded.list, *program_, BufferKind::kConstant, *constants_);
  bind_arena(*encoded.list, *program_, BufferKind::kTemp, *arena_);
  return encoded;
}

// What goes wrong at some sizes may go well at others: the message says which they are.
std::unique_ptr<CommandList> Executor::list_for(const Encoded& encoded, size_t method) {
  if (!encoded.sized) return device_->encode(program_, program_->methods[method]);
  try {
    return device_->encode(encoded.sized, encoded.sized->methods.front());
  } catch (const Error& error) {
    throw Error(error.code(),
                "at " + sizes_text(program_->methods[method], encoded.sizes) + ": " + error.what());
  }
}

std::shared_ptr<const Program> Executor::prepare(size_t method, std::span<const int64_t> sizes) {
  check_method(method);
  const Turn turn(running_, kBusy);
  const Encoded& encoded = encoded_at(method, sizes);
  return encoded.sized ? encoded.sized : program_;
}

Executor::Encoded& Executor::encoded_at(size_t method, std::span<const int64_t> sizes) {
  Forms& forms = methods_[method];
  std::vector<Encoded>& known = forms.known;
  const auto same = [&](const Encoded& encoded) {
    return sizes.empty() ||
           std::equal(encoded.sizes.begin(), encoded.sizes.end(), sizes.begin(), sizes.end());
  };
  auto found = std::find_if(known.begin(), known.end(), same);
  if (found == known.end()) {
    Encoded fresh = encode(method, sizes);  // throws when the sizes are none of the method's
    if (known.size() <= kKeptSizes) {
      found = known.insert(found, std::move(fresh));
    } else {
      const auto older = [](const Encoded& a, const Encoded& b) { return a.used < b.used; };
      found = std::min_element(known.begin() + 1, known.end(), older);
      found->list->settle();  // its memory may still be in use
      *found = std::move(fresh);
    }
  }
  found->used = ++runs_;
  forms.latest = static_cast<size_t>(found - known.begin());
  return *found;
}

size_t Executor::method_index(std::string_view name) const {
  return npusim::method_index(*program_, name);
}

void Executor::check_method(size_t method) const {
  if (method < methods_.size()) return;
  throw Error(ErrorCode::kInput, "the program has no method " + std::to_string(method) +
                                     "; it has " + std::to_string(methods_.size()));
}

bool Executor::can_fail(size_t method) const {
  check_method(method);
  return methods_[method].greatest().can_fail();
}

void Executor::run(size_t method, std::span<const Binding> inputs, std::span<const Binding> outputs,
                   const Weights* weights, State* state, std::span<const int64_t> sizes) {
  start(method, inputs, outputs, weights, state, sizes, [this](CommandList& list, bool) {
    follow(own_queue_);
    list.submit();
  });
}

// What has outputs to copy goes by the device's own queue as a whole.
void Executor::enqueue(size_t method, std::span<const Binding> inputs,
                       std::span<const Binding> outputs, const Weights* weights, State* state,
                       uintptr_t queue, std::span<const int64_t> sizes) {
  const uintptr_t own = own_queue_;
  if (queue != 0 && streams_ == nullptr) {
    throw Error(ErrorCode::kInput,
                "the device " + std::string(device_->name()) + " has no streams to put work into");
  }
  if (queue == 0) queue = own;
  bool by_own = queue == own;
  start(method, inputs, outputs, weights, state, sizes, [&](CommandList& list, bool copied) {
    by_own = by_own || copied;
    if (by_own && queue != own) streams_->order(queue, own);
    follow(by_own ? own : queue);
    list.enqueue(queue_);
    if (queue_ != own && !streams_->is_lasting(queue_)) follow(own);
  });
  if (by_own && queue != own) streams_->order(own, queue);
}

void Executor::settle(size_t method) {
  check_method(method);
  if (device_->synchronous()) return;
  const Turn turn(running_, kBusy);
  const Forms& forms = methods_[method];
  forms.known[forms.latest].list->settle();
}

// Puts what comes next into a queue, after the latest run and what was bound since.
void Executor::follow(uintptr_t queue) {
  if (queue == queue_) return;
  streams_->order(queue_, queue);
  queue_ = queue;
}

void Executor::observe(size_t method, std::span<const Binding> inputs,
                       std::span<const Binding> outputs, const Weights* weights,
                       const std::function<void(size_t)>& after, State* state,
                       std::span<const int64_t> sizes) {
  // Cleared on every way out; a callback may throw.
  struct Observing {
    std::atomic<std::thread::id>& observer;
    explicit Observing(std::atomic<std::thread::id>& who) : observer(who) {
      observer.store(std::this_thread::get_id());
    }
    ~Observing() { observer.store({}); }
  };
  start(method, inputs, outputs, weights, state, sizes, [&](CommandList& list, bool) {
    follow(own_queue_);
    const Observing observing(observer_);
    list.submit_observed(after);
  });
}

void Executor::time(size_t method, std::span<const Binding> inputs,
                    std::span<const Binding> outputs, const Weights* weights,
                    std::span<double> seconds, State* state, std::span<const int64_t> sizes) {
  check_method(method);
  const size_t commands = program_->methods[method].commands.size();
  if (seconds.size() != commands) {
    throw Error(ErrorCode::kInput, "the method has " + std::to_string(commands) +
                                       " commands, there is room for the times of " +
                                       std::to_string(seconds.size()));
  }
  start(method, inputs, outputs, weights, state, sizes, [&](CommandList& list, bool) {
    follow(own_queue_);
    list.submit_timed(seconds);
  });
}

template <typename Submit>
void Executor::start(size_t index, std::span<const Binding> inputs,
                     std::span<const Binding> outputs, const Weights* weights, State* state,
                     std::span<const int64_t> sizes, const Submit& submit) {
  check_method(index);
  const Turn turn(running_, kBusy);
  Encoded& encoded = encoded_at(index, sizes);
  const Program& program = encoded.sized ? *encoded.sized : *program_;
  const Method& method = encoded.sized ? program.methods.front() : program.methods[index];
  Detour detour(*device_, inputs, outputs);
  bind_weights(encoded, weights);
  bind_state(encoded, state);
  bind_caller(encoded, program, method.inputs, inputs, "input");
  bind_caller(encoded, program, method.outputs, detour.outputs(), "output");
  submit(*encoded.list, !detour.empty());
  detour.finish();
  if (weights != nullptr) weights->check();
}

void Executor::bind_weights(Encoded& encoded, const Weights* weights) {
  if (weight_buffers_.empty()) return;
  if (weights == nullptr) weights = own_weights_.get();
  if (weights == nullptr) {
    throw Error(ErrorCode::kWeights, "the program has weights: load them and pass them to run");
  }
  if (weights->serial() == encoded.weights_bound && weights->serial() == weights_shown_) return;
  if (&weights->program() != program_.get() || &weights->device() != device_.get()) {
    throw Error(ErrorCode::kWeights,
                "the weights were loaded for another program or device; load them with the program "
                "and device of this executor");
  }
  weights->check_now();
  follow(own_queue_);  // where they were made
  weights->lend();
  for (const uint32_t buffer : weight_buffers_) {
    places_[buffer] = weights->range(buffer);
    if (places_[buffer]) encoded.list->bind(buffer, *places_[buffer]);
  }
  encoded.weights_bound = weights_shown_ = weights->serial();
}

void Executor::require_own(const State& state) const {
  if (state.program() == program_ && state.device() == device_) return;
  throw Error(ErrorCode::kInput,
              "the state was made for another program or device; make it with the program and "
              "device of this executor");
}

std::shared_ptr<State> Executor::own_state() const {
  const Turn turn(running_, kBusy);
  return own_state_;
}

void Executor::set_own_state(std::shared_ptr<State> state) {
  const Turn turn(running_, kBusy);
  require_own(*state);
  own_state_ = std::move(state);
}

void Executor::bind_state(Encoded& encoded, State* state) {
  if (state != nullptr) require_own(*state);
  if (state_buffers_.empty()) return;
  if (state == nullptr) {
    if (!own_state_) own_state_ = std::make_shared<State>(program_, device_);
    state = own_state_.get();
  }
  if (state->serial() != encoded.state_bound) {
    follow(own_queue_);
    for (const uint32_t buffer : state_buffers_) encoded.list->bind(buffer, state->range(buffer));
    encoded.state_bound = state->serial();
  }
  if (state->serial() != state_shown_) {
    for (const uint32_t buffer : state_buffers_) places_[buffer] = state->range(buffer);
    state_shown_ = state->serial();
  }
}

void Executor::bind_caller(Encoded& encoded, const Program& program,
                           std::span<const TensorSpec> specs, std::span<const Binding> bindings,
                           const char* what) {
  if (bindings.size() != specs.size()) {
    throw Error(ErrorCode::kInput, "the method has " + std::to_string(specs.size()) + " " + what +
                                       "s, got " + std::to_string(bindings.size()));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    const uint32_t buffer = specs[i].buffer;
    const int64_t needed = program.buffers[buffer].bytes;
    if (bindings[i].bytes < needed) {
      throw Error(ErrorCode::kInput, std::string(what) + " " + std::string(specs[i].name) +
                                         " needs " + std::to_string(needed) + " bytes, got " +
                                         std::to_string(bindings[i].bytes));
    }
    const Binding at{bindings[i].storage, bindings[i].offset, needed};
    places_[buffer] = at;
    encoded.list->bind(buffer, at);
  }
}

std::vector<std::string> Executor::implementations(size_t method) const {
  check_method(method);
  std::vector<std::string> names;
  for (size_t i = 0; i < program_->methods[method].commands.size(); ++i) {
    names.push_back(methods_[method].greatest().implementation(i));
  }
  return names;
}

// Whether a buffer lies in memory that lives as long as the executor.
bool Executor::owns(uint32_t buffer) const {
  switch (program_->buffers[buffer].kind) {
    case BufferKind::kTemp:
    case BufferKind::kConstant:
      return true;
    case BufferKind::kState:
      return own_state_ != nullptr && own_state_->serial() == state_shown_;
    case BufferKind::kWeight:
    case BufferKind::kPersistent:
      return own_weights_ != nullptr && own_weights_->serial() == weights_shown_;
    case BufferKind::kInput:
    case BufferKind::kOutput:
      break;
  }
  return false;
}

std::optional<Binding> Executor::buffer(uint32_t index) const {
  if (index >= places_.size()) {
    throw Error(ErrorCode::kInput, "the program has no buffer " + std::to_string(index));
  }
  const bool observes = observer_.load() == std::this_thread::get_id();
  std::optional<Turn> turn;
  if (!observes) turn.emplace(running_, kBusy);
  if (!observes && !owns(index)) return {};
  return places_[index];
}

void Executor::write_buffer(uint32_t index, std::span<const std::byte> bytes) {
  const std::optional<Binding> room = buffer(index);
  const BufferKind kind = program().buffers[index].kind;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInput, "buffer " + std::to_string(index) + why);
  };
  if (kind != BufferKind::kTemp && kind != BufferKind::kOutput && kind != BufferKind::kState) {
    refuse(" is not one that commands write: a temporary, an output or a state");
  }
  if (!room) refuse(" has no memory of the executor's own: a run brings it");
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > room->bytes) {
    refuse(" holds " + std::to_string(room->bytes) + " bytes, got " + std::to_string(size));
  }
  if (size > 0) device().upload(room->part(0, size), bytes);
}

}  // namespace npusim
