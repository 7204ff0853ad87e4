// Memory that belongs to something else: an array of the caller, a file map, a program's bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "cpp/runtime/device.h"

namespace npusim {

class BorrowedMemory final : public Memory {
 public:
  // `owner` keeps the range alive; `host` is where the host has it, or null.
  BorrowedMemory(const MemoryRange& range, std::byte* host, std::shared_ptr<const void> owner)
      : range_(range), host_(host), owner_(std::move(owner)) {}
  MemoryRange range() const noexcept override { return range_; }
  std::byte* host() const noexcept override { return host_; }

 private:
  MemoryRange range_;
  std::byte* host_;
  std::shared_ptr<const void> owner_;
};

}  // namespace npusim
