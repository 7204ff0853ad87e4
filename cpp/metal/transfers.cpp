#include "cpp/metal/transfers.h"

#include <algorithm>
#include <cstring>

#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr size_t kWord = 4;                  // a blit copies whole ones, from whole ones on
constexpr size_t kPiece = size_t{64} << 20;  // bytes that are on their way at once

// Bytes of a storage, and the words that they lie in.
struct Words {
  size_t first, last;  // of the words; `last` is behind them
  size_t lead, bytes;  // in front of the bytes, and of them
  bool whole() const noexcept { return bytes == last - first; }
  size_t size() const noexcept { return last - first; }
};

Words words_of(size_t offset, size_t bytes) {
  const size_t first = offset / kWord * kWord;
  return {first, (offset + bytes + kWord - 1) / kWord * kWord, offset - first, bytes};
}

// Returns the number of the work.
uint64_t blit(Storage& to, size_t to_offset, Storage& from, size_t from_offset, size_t bytes) {
  const Pool pool;
  Queue& queue = to.context->queue();
  const Owned<MTL::CommandBuffer> buffer = queue.begin();
  const auto encoder = NS::RetainPtr(buffer->blitCommandEncoder());
  if (!encoder) throw Error(ErrorCode::kDevice, "the Metal device gives no blit encoder");
  encoder->copyFromBuffer(from.buffer.get(), from_offset, to.buffer.get(), to_offset, bytes);
  encoder->endEncoding();
  const uint64_t number = queue.commit(buffer);
  to.use(number, true);
  from.use(number, false);
  return number;
}

// Words of private memory, where the host reads them.
MetalMemory fetched(Storage& storage, const Words& words) {
  MetalMemory staging(storage.context, static_cast<int64_t>(words.size()));
  Storage& to = storage_of(staging.range());
  storage.context->finish(blit(to, 0, storage, words.first, words.size()));
  return staging;
}

}  // namespace

void upload_private(const MemoryRange& to, std::span<const std::byte> from) {
  Storage& storage = storage_of(to);
  for (size_t at = 0; at < from.size(); at += kPiece) {
    const Words words = words_of(to.offset + at, std::min(kPiece, from.size() - at));
    const MetalMemory staging =
        words.whole() ? MetalMemory(storage.context, static_cast<int64_t>(words.size()))
                      : fetched(storage, words);
    std::memcpy(staging.host() + words.lead, from.data() + at, words.bytes);
    const uint64_t number =
        blit(storage, words.first, storage_of(staging.range()), 0, words.size());
    if (at + kPiece < from.size()) storage.context->finish(number);
  }
}

void download_private(std::span<std::byte> to, const MemoryRange& from) {
  Storage& storage = storage_of(from);
  storage.context->finish(storage.last_write.load());
  for (size_t at = 0; at < to.size(); at += kPiece) {
    const Words words = words_of(from.offset + at, std::min(kPiece, to.size() - at));
    const MetalMemory staging = fetched(storage, words);
    std::memcpy(to.data() + at, staging.host() + words.lead, words.bytes);
  }
}

}  // namespace npusim::metal
