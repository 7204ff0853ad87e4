// Tokens of an event: most often one, which lies in the list itself, so that a step of many
// requests allocates nothing for them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace npusim::serve {

class TokenList {
 public:
  TokenList() = default;
  TokenList(const TokenList&) = default;
  TokenList& operator=(const TokenList&) = default;
  // What was moved from has none.
  TokenList(TokenList&& from) noexcept { *this = std::move(from); }
  TokenList& operator=(TokenList&& from) noexcept {
    few_ = from.few_;
    many_ = std::move(from.many_);
    size_ = std::exchange(from.size_, 0);
    from.many_.clear();
    return *this;
  }

  const int64_t* data() const noexcept { return many_.empty() ? few_.data() : many_.data(); }
  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  const int64_t* begin() const noexcept { return data(); }
  const int64_t* end() const noexcept { return data() + size_; }

  void push_back(int64_t token) {
    if (many_.empty() && size_ < few_.size()) {
      few_[size_++] = token;
      return;
    }
    if (many_.empty()) many_.assign(few_.begin(), few_.end());
    many_.push_back(token);
    ++size_;
  }
  void append(std::span<const int64_t> tokens) {
    for (const int64_t token : tokens) push_back(token);
  }
  bool operator==(std::span<const int64_t> other) const { return std::ranges::equal(*this, other); }

 private:
  std::array<int64_t, 3> few_{};
  std::vector<int64_t> many_;  // all of them, where they are more
  size_t size_ = 0;
};

}  // namespace npusim::serve
