// What a C++ test needs: checks that count failures and say where, and the exit code of main.
#pragma once

#include <cstdio>
#include <source_location>
#include <string>
#include <string_view>

#include "cpp/runtime/error.h"

namespace npusim::tests {

inline int failures = 0;

inline void fail(const std::string& what, const std::source_location& at) {
  ++failures;
  std::fprintf(stderr, "%s:%u: %s\n", at.file_name(), static_cast<unsigned>(at.line()),
               what.c_str());
}

inline void check(bool condition, const std::string& what,
                  const std::source_location at = std::source_location::current()) {
  if (!condition) fail(what, at);
}

// Runs `action`, which must throw Error of this code with `words` in its message.
template <typename Action>
void check_refused(ErrorCode code, std::string_view words, Action action,
                   const std::source_location at = std::source_location::current()) {
  try {
    action();
    fail("accepted; expected a refusal with '" + std::string(words) + "'", at);
  } catch (const Error& error) {
    const std::string message = error.what();
    if (error.code() != code) fail("wrong error code: " + message, at);
    if (message.find(words) == message.npos) {
      fail("expected '" + std::string(words) + "' in: " + message, at);
    }
  }
}

inline int exit_code() {
  if (failures == 0) return 0;
  std::fprintf(stderr, "%d failed\n", failures);
  return 1;
}

}  // namespace npusim::tests
