#include "cpp/device_code/inflate.h"

#include <array>
#include <cstdint>

#include "cpp/runtime/error.h"

namespace npusim {
namespace {

constexpr size_t kMostBits = 15, kLiterals = 288, kDistances = 32;
constexpr unsigned kEndOfBlock = 256, kLengthCodes = 29, kDistanceCodes = 30;

// A canonical Huffman code, by code length.
struct Code {
  std::array<uint16_t, kMostBits + 1> count{};
  std::array<uint16_t, kLiterals> symbol{};
};

class Inflater {
 public:
  Inflater(std::span<const std::byte> stream, size_t most, const std::string& what)
      : what_(what), in_(stream), most_(most) {}

  std::string run() {
    const unsigned method = bits(8), flags = bits(8);
    if ((method & 15) != 8 || (method << 8 | flags) % 31 != 0 || (flags & 32) != 0) damaged();
    for (bool last = false; !last;) {
      last = bits(1) != 0;
      block(bits(2));
    }
    buffer_ = 0;  // what is left of the byte is padding
    held_ = 0;
    uint32_t sum = 0;
    for (int i = 0; i < 4; ++i) sum = sum << 8 | bits(8);
    if (sum != adler()) damaged();
    return std::move(out_);
  }

 private:
  [[noreturn]] void damaged() const {
    throw Error(ErrorCode::kFormat, what_ + ": its compressed source is damaged");
  }

  unsigned bits(int count) {
    while (held_ < count) {
      if (at_ == in_.size()) damaged();
      buffer_ |= std::to_integer<uint64_t>(in_[at_++]) << held_;
      held_ += 8;
    }
    const auto value = static_cast<unsigned>(buffer_ & ((uint64_t{1} << count) - 1));
    buffer_ >>= count;
    held_ -= count;
    return value;
  }

  void block(unsigned type) {
    if (type == 0) return stored();
    if (type == 1) return compressed(fixed_literals(), fixed_distances());
    if (type == 2) return dynamic();
    damaged();
  }

  void put(char byte) {
    if (out_.size() == most_) {
      throw Error(ErrorCode::kFormat,
                  what_ + ": its source is longer than " + std::to_string(most_) + " bytes");
    }
    out_.push_back(byte);
  }

  void stored() {
    buffer_ = 0;
    held_ = 0;
    const unsigned length = bits(16), inverse = bits(16);
    if (length != (~inverse & 0xFFFF)) damaged();
    for (unsigned i = 0; i < length; ++i) put(static_cast<char>(bits(8)));
  }

  Code code(std::span<const uint8_t> lengths) const {
    Code code;
    for (const uint8_t length : lengths) ++code.count[length];
    code.count[0] = 0;
    int left = 1;
    for (size_t length = 1; length <= kMostBits; ++length) {
      left = left * 2 - code.count[length];
      if (left < 0) damaged();  // more codes than there is room for
    }
    std::array<uint16_t, kMostBits + 2> offset{};
    for (size_t length = 1; length <= kMostBits; ++length) {
      offset[length + 1] = static_cast<uint16_t>(offset[length] + code.count[length]);
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] != 0) code.symbol[offset[lengths[i]]++] = static_cast<uint16_t>(i);
    }
    return code;
  }

  unsigned symbol(const Code& code) {
    int value = 0, first = 0, index = 0;
    for (size_t length = 1; length <= kMostBits; ++length) {
      value |= static_cast<int>(bits(1));
      const int count = code.count[length];
      if (value - count < first) return code.symbol[static_cast<size_t>(index + value - first)];
      index += count;
      first = (first + count) << 1;
      value <<= 1;
    }
    damaged();
  }

  Code fixed_literals() const {
    std::array<uint8_t, kLiterals> lengths;
    for (size_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    }
    return code(lengths);
  }
  Code fixed_distances() const {
    std::array<uint8_t, kDistanceCodes> lengths;
    lengths.fill(5);
    return code(lengths);
  }

  void dynamic() {
    constexpr uint8_t kOrder[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                    11, 4,  12, 3, 13, 2, 14, 1, 15};
    const unsigned literals = bits(5) + 257, distances = bits(5) + 1, codes = bits(4) + 4;
    if (literals > kLiterals - 2 || distances > kDistanceCodes) damaged();
    std::array<uint8_t, kLiterals + kDistances> lengths{};
    for (unsigned i = 0; i < codes; ++i) lengths[kOrder[i]] = static_cast<uint8_t>(bits(3));
    const Code meta = code(std::span(lengths).first(19));
    lengths.fill(0);
    for (unsigned i = 0; i < literals + distances;) {
      const unsigned value = symbol(meta);
      if (value < 16) {
        lengths[i++] = static_cast<uint8_t>(value);
        continue;
      }
      if (value == 16 && i == 0) damaged();
      const uint8_t repeated = value == 16 ? lengths[i - 1] : 0;
      const unsigned times = value == 16 ? 3 + bits(2) : value == 17 ? 3 + bits(3) : 11 + bits(7);
      if (times > literals + distances - i) damaged();
      for (unsigned end = i + times; i < end; ++i) lengths[i] = repeated;
    }
    const std::span<const uint8_t> all(lengths);
    compressed(code(all.first(literals)), code(all.subspan(literals, distances)));
  }

  void compressed(const Code& literals, const Code& distances) {
    constexpr uint16_t kLength[kLengthCodes] = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                                15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                                67, 83, 99, 115, 131, 163, 195, 227, 258};
    constexpr uint8_t kLengthExtra[kLengthCodes] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                    2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    for (;;) {
      unsigned value = symbol(literals);
      if (value == kEndOfBlock) return;
      if (value < kEndOfBlock) {
        put(static_cast<char>(value));
        continue;
      }
      value -= kEndOfBlock + 1;
      if (value >= kLengthCodes) damaged();
      const unsigned length = kLength[value] + bits(kLengthExtra[value]);
      const size_t distance = read_distance(symbol(distances));
      if (distance > out_.size()) damaged();
      for (unsigned i = 0; i < length; ++i) put(out_[out_.size() - distance]);
    }
  }

  size_t read_distance(unsigned code) {
    if (code >= kDistanceCodes) damaged();
    if (code < 4) return code + 1;
    const int extra = static_cast<int>(code / 2) - 1;
    return ((2 + (code & 1)) << extra) + 1 + bits(extra);
  }

  uint32_t adler() const {
    uint32_t low = 1, high = 0;
    for (const char byte : out_) {
      low = (low + static_cast<unsigned char>(byte)) % 65521;
      high = (high + low) % 65521;
    }
    return high << 16 | low;
  }

  const std::string& what_;
  std::span<const std::byte> in_;
  size_t most_, at_ = 0;
  uint64_t buffer_ = 0;
  int held_ = 0;
  std::string out_;
};

}  // namespace

std::string inflate(std::span<const std::byte> stream, size_t most, const std::string& what) {
  return Inflater(stream, most, what).run();
}

}  // namespace npusim
