#include "cpp/cuda/downloads.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

namespace npusim::cuda {
namespace {

constexpr size_t kLeastBlock = size_t{4} << 10;

}  // namespace

// Pinned memory, and what tells when the copy to it is done.
struct Downloads::Block {
  Block(const std::shared_ptr<const Context>& context, size_t bytes)
      : memory(context, bytes), driver(context->driver()) {
    driver.check(driver.event_create(&done, kEventWithoutTiming), "make an event");
  }
  ~Block() { driver.event_destroy(done); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  PinnedMemory memory;
  const Driver& driver;
  EventHandle done = nullptr;
};

class Downloads::Copy final : public Download {
 public:
  Copy(std::shared_ptr<Downloads> owner, std::shared_ptr<const Memory> from,
       Blocks::node_type block)
      : owner_(std::move(owner)),
        bytes_(static_cast<size_t>(from->bytes())),
        from_(std::move(from)),
        block_(std::move(block)) {}

  // Nobody may be given memory that is still read, or written.
  ~Copy() override {
    if (from_ != nullptr) settle();
    from_.reset();
    owner_->give_back(std::move(block_));
  }

  std::span<std::byte> wait() override {
    if (from_ != nullptr) {
      owner_->context_->driver().check(settle(), "copy from the device");
      from_.reset();
    }
    return {block_.mapped()->memory.data(), bytes_};
  }

 private:
  Result settle() const {
    const Current current(*owner_->context_);
    return owner_->context_->driver().event_synchronize(block_.mapped()->done);
  }

  std::shared_ptr<Downloads> owner_;
  size_t bytes_;
  std::shared_ptr<const Memory> from_;  // until it has been read
  Blocks::node_type block_;
};

Downloads::Downloads(std::shared_ptr<const Context> context) : context_(std::move(context)) {}

Downloads::~Downloads() {
  const Current current(*context_);
  resting_.clear();
  if (stream_ != nullptr) context_->driver().stream_destroy(stream_);
}

std::unique_ptr<Download> Downloads::start(std::shared_ptr<const Memory> from) {
  const Driver& driver = context_->driver();
  const Current current(*context_);
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  if (stream_ == nullptr) {
    driver.check(driver.stream_create(&stream_, kStreamNonBlocking), "make a stream");
  }
  const auto bytes = static_cast<size_t>(from->bytes());
  Blocks::node_type taken = take(bytes);
  const Block& block = *taken.mapped();
  context_->order(context_->stream(), stream_);
  if (bytes > 0) {
    const Result copied =
        driver.copy_to_host(block.memory.data(), from->range().offset, bytes, stream_);
    driver.check(copied, "copy from the device");
  }
  driver.check(driver.event_record(block.done, stream_), "copy from the device");
  return std::make_unique<Copy>(shared_from_this(), std::move(from), std::move(taken));
}

// A block at rest of the size, or a new one.
Downloads::Blocks::node_type Downloads::take(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kLeastBlock));
  const auto found = resting_.find(size);
  if (found != resting_.end()) return resting_.extract(found);
  Blocks fresh;
  return fresh.extract(fresh.emplace(size, std::make_unique<Block>(context_, size)));
}

void Downloads::give_back(Blocks::node_type block) {
  const std::lock_guard<ForkSafeMutex> locked(turn_);
  resting_.insert(std::move(block));
}

}  // namespace npusim::cuda
