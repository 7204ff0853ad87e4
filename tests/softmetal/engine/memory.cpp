#include "engine/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace softmetal {
namespace {

constexpr unsigned char kPattern = 0xA5, kPoison = 0xFF;

std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

unsigned char* map_between_guards(std::size_t usable, std::size_t guard) {
  void* mapping = mmap(nullptr, usable + 2 * guard, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  auto* first = static_cast<unsigned char*>(mapping);
  if (mprotect(first + guard, usable, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping, usable + 2 * guard);
    throw std::bad_alloc();
  }
  return first;
}

}  // namespace

Allocation::Allocation(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t aligned = round_up(std::max<std::size_t>(bytes, 1), alignment);
  usable_ = round_up(aligned, page);
  mapped_ = usable_ + 2 * kGuardBytes;
  mapping_ = map_between_guards(usable_, kGuardBytes);
  unsigned char* first = mapping_ + kGuardBytes;
  data_ = first + usable_ - aligned;
  std::memset(first, kPattern, static_cast<std::size_t>(data_ - first));
  std::memset(data_ + bytes_, kPattern, aligned - bytes_);
}

Allocation::Allocation(void* host, std::size_t bytes)
    : data_(static_cast<unsigned char*>(host)), bytes_(bytes) {}

Allocation::~Allocation() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

bool Allocation::near(std::uintptr_t address, std::int64_t* byte) const {
  const auto data = reinterpret_cast<std::uintptr_t>(data_);
  const auto first = mapping_ ? reinterpret_cast<std::uintptr_t>(mapping_) : data;
  const std::size_t extent = mapping_ ? mapped_ : bytes_;
  *byte = static_cast<std::int64_t>(address - data);
  return address >= first && address < first + extent;
}

std::string Allocation::check() const {
  if (mapping_ == nullptr) return "";
  const unsigned char* first = mapping_ + kGuardBytes;
  const unsigned char* end = first + usable_;
  for (const unsigned char* at = first; at < end; ++at) {
    if (at == data_) at += bytes_;
    if (at < end && *at != kPattern) return std::to_string(at - data_);
  }
  return "";
}

ThreadgroupMemory::ThreadgroupMemory()
    : mapping_(map_between_guards(kCapacity, Allocation::kGuardBytes)) {}

std::size_t ThreadgroupMemory::total() const {
  return size_ == 0 ? 0 : offsets_[size_ - 1] + bytes_[size_ - 1];
}

void ThreadgroupMemory::reserve(std::size_t bytes, std::size_t alignment) {
  if (size_ == kMost) throw std::bad_alloc();
  offsets_[size_] = round_up(total() + kGap, std::max<std::size_t>(alignment, 16));
  bytes_[size_] = bytes;
  ++size_;
  if (total() + kGap > kCapacity) throw std::bad_alloc();
}

// The last byte ends at the guard, but for what alignment asks.
void* ThreadgroupMemory::address(std::size_t index) const {
  unsigned char* end = mapping_ + Allocation::kGuardBytes + kCapacity;
  return end - round_up(total(), 128) + offsets_[index];
}

void ThreadgroupMemory::poison() {
  if (size_ == 0) return;
  auto* first = static_cast<unsigned char*>(address(0)) - kGap;
  unsigned char* end = mapping_ + Allocation::kGuardBytes + kCapacity;
  std::memset(first, kPattern, static_cast<std::size_t>(end - first));
  for (std::size_t i = 0; i < size_; ++i) std::memset(address(i), kPoison, bytes_[i]);
}

int ThreadgroupMemory::damaged() const {
  const unsigned char* end = mapping_ + Allocation::kGuardBytes + kCapacity;
  for (std::size_t i = 0; i < size_; ++i) {
    const auto* begin = static_cast<const unsigned char*>(address(i));
    const auto* next = i + 1 < size_ ? static_cast<const unsigned char*>(address(i + 1)) : end;
    if (std::any_of(begin - kGap, begin, [](unsigned char b) { return b != kPattern; }) ||
        std::any_of(begin + bytes_[i], next, [](unsigned char b) { return b != kPattern; })) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

bool ThreadgroupMemory::near(std::uintptr_t address) const {
  const auto first = reinterpret_cast<std::uintptr_t>(mapping_);
  return address >= first && address < first + kCapacity + 2 * Allocation::kGuardBytes;
}

}  // namespace softmetal
