// The JSON cursor: what RFC 8259 allows is read, everything else is refused at the right byte.
#include <limits>
#include <string>
#include <vector>

#include "cpp/runtime/json.h"
#include "tests/cpp/check.h"

namespace npusim::tests {
namespace {

void skip_all(const std::string& text) {
  JsonReader json(text, "text");
  json.skip();
  json.end();
}

void reads_values() {
  JsonReader json(R"( {"a" : [1, 22 ,0], "b\u00e9\n" : "\ud83d\ude42", "c":{} , "d":[]} )", "text");
  std::vector<std::string> keys;
  std::vector<int64_t> numbers;
  std::string text;
  json.object([&](std::string key) {
    keys.push_back(key);
    if (key == "a") return json.array([&] { numbers.push_back(json.natural()); });
    if (key == "c" || key == "d") return json.skip();
    text = json.string();
  });
  json.end();
  check(keys == std::vector<std::string>{"a", "bé\n", "c", "d"}, "keys");
  check(numbers == std::vector<int64_t>{1, 22, 0}, "numbers");
  check(text == "🙂", "a surrogate pair is one character");
  JsonReader truths("[true, false]", "text");
  std::vector<bool> values;
  truths.array([&] { values.push_back(truths.boolean()); });
  check(values == std::vector<bool>{true, false}, "booleans");
}

void accepts_what_json_is() {
  for (const char* text :
       {"0", "-0", "1.5e-3", "1E+9", "true", "false", "null", "\"\"", "[]", "{}",
        " [ 1 , {\"a\":[null]} ] ", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"é🙂\""}) {
    try {
      skip_all(text);
    } catch (const Error& error) {
      check(false, std::string(text) + " refused: " + error.what());
    }
  }
}

void refuses_what_it_is_not() {
  using namespace std::string_literals;
  for (const std::string& text : {""s,
                                  " "s,
                                  "01"s,
                                  "-"s,
                                  "+1"s,
                                  "1."s,
                                  ".5"s,
                                  "1e"s,
                                  "NaN"s,
                                  "Infinity"s,
                                  "tru"s,
                                  "nul"s,
                                  "'a'"s,
                                  "\"a"s,
                                  "\"\\"s,
                                  "\"\\x\""s,
                                  "\"\\u12g4\""s,
                                  "\"\\u12\""s,
                                  "\"\\ud800\""s,
                                  "\"\\ud800\\u0041\""s,
                                  "\"\\udc00\""s,
                                  "\"\n\""s,
                                  "\"\0\""s,
                                  "[1,]"s,
                                  "[1 2]"s,
                                  "[,]"s,
                                  "{\"a\"}"s,
                                  "{\"a\":1,}"s,
                                  "{a:1}"s,
                                  "{\"a\":1 \"b\":2}"s,
                                  "[1]]"s,
                                  "1 2"s,
                                  "\0"s,
                                  "// a\n1"s,
                                  "\"\xff\""s,
                                  "\"\xc0\x80\""s,
                                  "\"\xed\xa0\x80\""s,
                                  "\"\xf4\x90\x80\x80\""s,
                                  "\"\xe2\x82\""s,
                                  "\"\\u\x11\x11\x11\x11\""s}) {
    check_refused(ErrorCode::kFormat, "JSON byte", [&] { skip_all(text); });
  }
}

void bounds_depth_and_numbers() {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  skip_all(nested(JsonReader::kMaxDepth));
  check_refused(ErrorCode::kFormat, "nested deeper", [&] { skip_all(nested(33)); });
  check_refused(ErrorCode::kFormat, "nested deeper", [&] { skip_all(std::string(1 << 20, '[')); });
  JsonReader largest("9223372036854775807", "text");
  check(largest.natural() == std::numeric_limits<int64_t>::max(), "2^63 - 1 is read");
  for (const char* text :
       {"9223372036854775808", "99999999999999999999", "-1", "1.0", "1e3", "00"}) {
    check_refused(ErrorCode::kFormat, "JSON byte", [&] { JsonReader(text, "text").natural(); });
  }
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  reads_values();
  accepts_what_json_is();
  refuses_what_it_is_not();
  bounds_depth_and_numbers();
  return exit_code();
}
