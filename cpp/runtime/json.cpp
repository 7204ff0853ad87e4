#include "cpp/runtime/json.h"

#include <limits>

#include "cpp/runtime/error.h"
#include "cpp/runtime/utf8.h"

namespace npusim {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void append_utf8(std::string& to, uint32_t point) {
  const auto tail = [&](int shift) { to += static_cast<char>(0x80 | (point >> shift & 0x3F)); };
  if (point < 0x80) {
    to += static_cast<char>(point);
  } else if (point < 0x800) {
    to += static_cast<char>(0xC0 | point >> 6);
    tail(0);
  } else if (point < 0x10000) {
    to += static_cast<char>(0xE0 | point >> 12);
    tail(6);
    tail(0);
  } else {
    to += static_cast<char>(0xF0 | point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace

JsonReader::JsonReader(std::string_view text, std::string what)
    : text_(text), what_(std::move(what)) {
  if (!is_utf8(text)) refuse("the text is not UTF-8");
}

void JsonReader::refuse(const std::string& why) const {
  throw Error(ErrorCode::kFormat, what_ + ": JSON byte " + std::to_string(at_) + ": " + why + ".");
}

// The next character that is not white space; NUL at the end (which JSON never allows raw).
char JsonReader::peek() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return c;
    ++at_;
  }
  return '\0';
}

bool JsonReader::accept(char c) {
  if (peek() != c || at_ == text_.size()) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char c, const char* what) {
  if (!accept(c)) refuse(std::string("expected ") + what);
}

void JsonReader::enter() {
  if (++depth_ > kMaxDepth) refuse("nested deeper than " + std::to_string(kMaxDepth) + " levels");
}

void JsonReader::object(const std::function<void(std::string key)>& member) {
  expect('{', "an object");
  enter();
  if (!accept('}')) {
    do {
      std::string key = string();
      expect(':', "':' after a key");
      member(std::move(key));
    } while (accept(','));
    expect('}', "',' or '}'");
  }
  --depth_;
}

void JsonReader::array(const std::function<void()>& element) {
  expect('[', "an array");
  enter();
  if (!accept(']')) {
    do element();
    while (accept(','));
    expect(']', "',' or ']'");
  }
  --depth_;
}

std::string JsonReader::string() {
  expect('"', "a string");
  std::string out;
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (c == '"') {
      ++at_;
      return out;
    }
    if (static_cast<unsigned char>(c) < 0x20) refuse("a control character in a string");
    if (c == '\\') {
      append_escape(out);
    } else {
      out += c;
    }
  }
  refuse("a string without end");
}

// Reads one escape; leaves the cursor on its last character.
void JsonReader::append_escape(std::string& to) {
  if (++at_ == text_.size()) refuse("a string without end");
  constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (const size_t index = kEscapes.find(text_[at_]); index != kEscapes.npos) {
    to += kMeanings[index];
    return;
  }
  if (text_[at_] != 'u') refuse("an unknown escape");
  uint32_t point = hex4();
  if (point >= 0xD800 && point < 0xDC00 && text_.substr(at_ + 1, 2) == "\\u") {
    at_ += 2;
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) refuse("half of a surrogate pair");
    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
  } else if (point >= 0xD800 && point <= 0xDFFF) {
    refuse("half of a surrogate pair");
  }
  append_utf8(to, point);
}

// Reads four digits after the cursor; leaves it on the last one.
uint32_t JsonReader::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    if (++at_ >= text_.size()) refuse("a string without end");
    const char c = text_[at_];
    const auto digit = std::string_view("0123456789abcdef").find(static_cast<char>(c | 0x20));
    // The letter's bit is set in digits already, and would turn a control character into one.
    if (digit == std::string_view::npos || (digit < 10 && !is_digit(c)))
      refuse("expected a hex digit");
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return value;
}

int64_t JsonReader::natural() {
  if (!is_digit(peek())) refuse("expected a number that is not negative");
  const size_t start = at_;
  int64_t value = 0;
  for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
    const int digit = text_[at_] - '0';
    if (value > (std::numeric_limits<int64_t>::max() - digit) / 10) refuse("number too large");
    value = value * 10 + digit;
  }
  if (text_[start] == '0' && at_ - start > 1) refuse("a number with leading zeros");
  if (at_ < text_.size() && std::string_view(".eE").find(text_[at_]) != std::string_view::npos) {
    refuse("expected an integer");
  }
  return value;
}

bool JsonReader::boolean() {
  const char c = peek();
  if (c != 't' && c != 'f') refuse("expected true or false");
  skip_word(c == 't' ? "true" : "false");
  return c == 't';
}

void JsonReader::skip() {
  switch (peek()) {
    case '{':
      return object([this](const std::string&) { skip(); });
    case '[':
      return array([this] { skip(); });
    case '"':
      string();
      return;
    case 't':
      return skip_word("true");
    case 'f':
      return skip_word("false");
    case 'n':
      return skip_word("null");
    default:
      return skip_number();
  }
}

void JsonReader::skip_word(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) refuse("expected a value");
  at_ += word.size();
}

void JsonReader::skip_number() {
  const auto next_is = [this](std::string_view set) {
    return at_ < text_.size() && set.find(text_[at_]) != set.npos;
  };
  if (next_is("-")) ++at_;
  const bool zero = next_is("0");
  const size_t start = at_;
  skip_digits();
  if (zero && at_ - start > 1) refuse("a number with leading zeros");
  if (next_is(".")) {
    ++at_;
    skip_digits();
  }
  if (next_is("eE")) {
    ++at_;
    if (next_is("+-")) ++at_;
    skip_digits();
  }
}

void JsonReader::skip_digits() {
  if (at_ >= text_.size() || !is_digit(text_[at_])) refuse("expected a value");
  while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
}

void JsonReader::end() {
  peek();
  if (at_ != text_.size()) refuse("unexpected text after the end");
}

}  // namespace npusim
