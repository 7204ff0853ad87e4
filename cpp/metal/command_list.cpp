// What a command list does for its caller: binding, running, and saying what kernels met. How it is
// made stands in command_list_layout.cpp.
#include "cpp/metal/command_list.h"

#include <algorithm>
#include <utility>

#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr size_t kMostUnsettled = 64;
// For callers whose arguments take turns while runs are under way.
constexpr size_t kMostIndirect = 4;

}  // namespace

MetalCommandList::~MetalCommandList() {
  if (!unsettled_.empty()) context_->queue().wait(unsettled_.back());
}

void MetalCommandList::bind(uint32_t buffer, const MemoryRange& at) {
  const Bound bound{at, storage_of(at).serial};
  if (bound_[buffer] == bound) return;
  const Storage& storage = storage_of(at);  // begins at a multiple where it is private
  if ((reinterpret_cast<uintptr_t>(storage.host) + at.offset) % kOperandAlignment != 0) {
    throw Error(ErrorCode::kInput, "buffer " + std::to_string(buffer) + " (" +
                                       std::string(program_->buffers[buffer].name) +
                                       ") does not lie at a multiple of 16 bytes; copy it");
  }
  bound_[buffer] = bound;
  moved_ = true;
}

void MetalCommandList::submit() {
  enqueue(0);
  settle();
}

void MetalCommandList::enqueue(uintptr_t) {
  if (launches_.empty()) return;
  run(0, steps_.size());
}

// Indirect commands that have the launches with their arguments. Null: there are none, as the
// device has none, or as all that may be changed are under way.
IndirectCommands* MetalCommandList::indirect() {
  if (current_ != nullptr || !goes_indirect_) return current_;
  const auto found = std::ranges::find_if(
      indirect_, [&](const auto& one) { return one->holds(launches_, arguments_); });
  if (found != indirect_.end()) return current_ = found->get();
  auto idle =
      std::ranges::find_if(indirect_, [&](const auto& one) { return one->is_idle(*context_); });
  if (idle == indirect_.end()) {
    if (indirect_.size() == kMostIndirect) return nullptr;
    auto made = IndirectCommands::make(*context_, launches_);
    goes_indirect_ = made != nullptr;
    if (made == nullptr) return nullptr;
    idle = indirect_.insert(indirect_.end(), std::move(made));
  }
  (*idle)->encode(launches_, arguments_);
  return current_ = idle->get();
}

// Commands from one to another one, directly. Of a part, what others need may not be there (any
// more).
void MetalCommandList::encode(MTL::CommandBuffer& buffer, size_t first, size_t last) const {
  std::optional<Encoding> encoding;
  for (size_t step = first; step < last; ++step) {
    if (encode_products(encoding, buffer, step)) continue;
    for (size_t i = steps_[step].first_launch; i < steps_[step].last_launch; ++i) {
      const Launch& launch = launches_[i];
      if (!encoding) {
        encoding.emplace(buffer);  // which begins behind all that was encoded
      } else if (launch.barrier) {
        encoding->barrier();
      }
      encoding->launch(launch,
                       std::span(arguments_).subspan(launch.first_argument, launch.arguments));
    }
  }
}

// Whether MPS computes a command: then it is encoded, and the encoder in front of it has ended.
bool MetalCommandList::encode_products(std::optional<Encoding>& encoding,
                                       MTL::CommandBuffer& buffer, size_t step) const {
  const MpsProducts* const products = codes_[code_of_[step]].products.get();
  if (products == nullptr) return false;
  std::vector<MpsProducts::Place> places;
  for (size_t i = 0; i < method_.commands[step].operands.size(); ++i) {
    const Argument& argument = arguments_[steps_[step].first_argument + i];
    places.push_back({argument.buffer, argument.buffer->length(), argument.offset});
  }
  if (!products->fits(places)) return false;
  encoding.reset();
  products->encode(&buffer, places);
  return true;
}

// Up to which command one command buffer holds the launches: at least one command.
size_t MetalCommandList::batch_end(size_t first, size_t last) const {
  size_t end = first + 1;
  const size_t begin = steps_[first].first_launch;
  while (end < last && steps_[end].last_launch - begin <= batch_) ++end;
  return end;
}

// Encodes and commits commands, in order: in one command buffer, or in several that follow each
// other. Returns the last one.
Owned<MTL::CommandBuffer> MetalCommandList::run(size_t first, size_t last) {
  const Pool pool;
  const bool whole = first == 0 && last == steps_.size();
  if (moved_ || !whole) place_arguments(first, last);
  if (moved_ && whole) place_barriers();
  if (moved_) current_ = nullptr;
  moved_ = !whole;
  IndirectCommands* const recorded = whole ? indirect() : nullptr;
  Owned<MTL::CommandBuffer> buffer;
  for (size_t from = first; from < last;) {
    buffer = context_->queue().begin();
    std::vector<Owned<MTL::Resource>> kept;
    const size_t to = recorded != nullptr ? last : batch_end(from, last);
    if (recorded != nullptr) {
      Encoding encoding(*buffer.get());
      kept = recorded->execute(encoding, resources_);
    } else {
      encode(*buffer.get(), from, to);
    }
    const uint64_t number = context_->queue().commit(buffer, std::move(kept));
    if (recorded != nullptr) recorded->note(number);
    note(number);
    from = to;
  }
  return buffer;
}

// What nobody asks about for long is asked about here, so that it does not pile up.
void MetalCommandList::note(uint64_t number) {
  for (const auto& [storage, writes] : used_) storage->use(number, writes);
  if (unsettled_.size() >= kMostUnsettled) {
    context_->queue().wait(unsettled_[unsettled_.size() / 2]);
    const auto ended = unsettled_.begin() + static_cast<ptrdiff_t>(unsettled_.size() / 2);
    unsettled_.erase(
        std::remove_if(unsettled_.begin(), ended,
                       [&](uint64_t one) { return context_->queue().failure(one).empty(); }),
        ended);
  }
  unsettled_.push_back(number);
}

void MetalCommandList::settle() {
  if (unsettled_.empty()) return;
  const std::vector<uint64_t> numbers = std::exchange(unsettled_, {});
  for (const uint64_t number : numbers) context_->finish(number);
  if (failures_ != nullptr) failing_.check(*program_, method_, failures_->host());
}

void MetalCommandList::submit_observed(const std::function<void(size_t)>& after) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    run(i, i + 1);
    settle();
    after(i);
  }
}

void MetalCommandList::submit_stepwise(const std::function<void(size_t)>& after) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    run(i, i + 1);
    after(i);
  }
  settle();
}

// By the device's clock: each command has a command buffer of its own.
void MetalCommandList::submit_timed(std::span<double> seconds) {
  std::vector<Owned<MTL::CommandBuffer>> buffers;
  for (size_t i = 0; i < steps_.size(); ++i) buffers.push_back(run(i, i + 1));
  settle();
  const Pool pool;
  for (size_t i = 0; i < steps_.size(); ++i) {
    seconds[i] = buffers[i]->GPUEndTime() - buffers[i]->GPUStartTime();
  }
}

}  // namespace npusim::metal
