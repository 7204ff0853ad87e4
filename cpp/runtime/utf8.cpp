#include "cpp/runtime/utf8.h"

#include <cstdint>

namespace npusim {
namespace {

// The bytes of the sequence a lead byte opens, and the range of the second one; the ranges shut
// out overlong forms, surrogates and what lies past U+10FFFF. Length 0: no lead byte.
struct Sequence {
  size_t length;
  uint8_t low, high;
};

Sequence sequence_of(uint8_t lead) noexcept {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead < 0xF0) {
    return {3, static_cast<uint8_t>(lead == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(lead == 0xED ? 0x9F : 0xBF)};
  }
  if (lead < 0xF5) {
    return {4, static_cast<uint8_t>(lead == 0xF0 ? 0x90 : 0x80),
            static_cast<uint8_t>(lead == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0, 0, 0};
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  for (size_t at = 0; at < text.size();) {
    const Sequence sequence = sequence_of(static_cast<uint8_t>(text[at]));
    if (sequence.length == 0 || sequence.length > text.size() - at) return false;
    for (size_t i = 1; i < sequence.length; ++i) {
      const auto byte = static_cast<uint8_t>(text[at + i]);
      const uint8_t low = i == 1 ? sequence.low : 0x80, high = i == 1 ? sequence.high : 0xBF;
      if (byte < low || byte > high) return false;
    }
    at += sequence.length;
  }
  return true;
}

std::string quote_name(std::string_view name) {
  size_t length = name.size() <= 80 ? name.size() : 80;
  // Not inside a character.
  while (length < name.size() && length > 0 && (name[length] & 0xC0) == 0x80) --length;
  std::string text(name.substr(0, length));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return "'" + text + (length < name.size() ? "…'" : "'");
}

}  // namespace npusim
