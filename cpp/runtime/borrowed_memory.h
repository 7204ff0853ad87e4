// Memory that belongs to something else: an array of the caller, a file map, a program's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "cpp/runtime/device.h"

namespace npusim {

class BorrowedMemory final : public Memory {
 public:
  // `owner` keeps [data, data + bytes) alive.
  BorrowedMemory(std::byte* data, int64_t bytes, std::shared_ptr<const void> owner)
      : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
  std::byte* data() const noexcept override { return data_; }
  int64_t bytes() const noexcept override { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace npusim
