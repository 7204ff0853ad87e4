// A strict, bounded JSON cursor: the caller says what it expects next, in the order of the text.
//
// Serves the headers of checkpoints. Accepts exactly RFC 8259 in UTF-8, no more: no comments,
// trailing commas, NaN, or bytes after the end. Nesting is bounded, so hostile text cannot exhaust
// the stack; nothing is built that is larger than the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace npusim {

class JsonReader {
 public:
  static constexpr int kMaxDepth = 32;

  // `what` names the text in messages. The text must outlive the reader.
  JsonReader(std::string_view text, std::string what);

  // Every call below consumes one value and throws Error(kFormat), with the byte, when the next
  // value is not of its kind. The callbacks must consume the member's (element's) value.
  void object(const std::function<void(std::string key)>& member);
  void array(const std::function<void()>& element);
  std::string string();
  // An integer without sign, fraction or exponent; at most 2^63 - 1.
  int64_t natural();
  bool boolean();
  void skip();  // any value
  void end();   // verifies that only white space is left

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  char peek();
  bool accept(char c);
  void expect(char c, const char* what);
  void skip_number();
  void skip_digits();
  void skip_word(std::string_view word);
  void append_escape(std::string& to);
  uint32_t hex4();
  void enter();

  std::string_view text_;
  std::string what_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace npusim
