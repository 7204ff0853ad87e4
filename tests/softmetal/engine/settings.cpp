#include "engine/settings.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>

namespace softmetal {
namespace {

// Whole numbers only; `to` stays as it is for anything else.
template <typename T>
bool number(const std::string& value, T* to) {
  char* end = nullptr;
  const double parsed = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || parsed < 0) return false;
  *to = static_cast<T>(parsed);
  return true;
}

bool order(const std::string& value, Order* to) {
  static const std::map<std::string, Order> kOrders = {{"forward", Order::kForward},
                                                       {"reverse", Order::kReverse},
                                                       {"shuffle", Order::kShuffle},
                                                       {"eager", Order::kEager},
                                                       {"eager-reverse", Order::kEagerReverse}};
  const auto found = kOrders.find(value);
  if (found == kOrders.end()) return false;
  *to = found->second;
  return true;
}

bool assign(Settings* s, const std::string& name, const std::string& value) {
  if (name == "ORDER") return order(value, &s->order);
  if (name == "SEED") return number(value, &s->seed);
  if (name == "NAME") return s->name = value, true;
  if (name == "OS") return s->os = value, true;
  if (name == "FAMILY") return number(value, &s->family);
  if (name == "MAX_THREADS") return number(value, &s->max_threads);
  if (name == "THREADGROUP_MEMORY") return number(value, &s->threadgroup_memory);
  if (name == "MAX_BUFFER") return number(value, &s->max_buffer);
  if (name == "MAX_MEMORY") return number(value, &s->max_memory);
  if (name == "BUFFER_ALIGNMENT") return number(value, &s->buffer_alignment);
  if (name == "CONSTANT_ALIGNMENT") return number(value, &s->constant_alignment);
  if (name == "MATRIX_LAYOUT") return number(value, &s->matrix_layout);
  if (name == "INDIRECT_COMMANDS") return number(value, &s->indirect_commands);
  if (name == "PERFORMANCE_SHADERS") return number(value, &s->performance_shaders);
  if (name == "DELAY_US") return number(value, &s->delay_us);
  if (name == "TIMEOUT_S") return number(value, &s->timeout_s);
  if (name == "LEAKS")
    return s->fatal_leaks = value == "fatal", value == "fatal" || value == "told";
  if (name == "CACHE") return s->cache = value, true;
  return false;
}

Settings* from_environment() {
  auto* s = new Settings;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  s->cache = cache ? cache : home ? std::string(home) + "/.cache" : "/tmp";
  s->cache += "/npusim-softmetal";
  const std::string prefix = "SOFTMETAL_";
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry = *at;
    const auto equals = entry.find('=');
    if (entry.compare(0, prefix.size(), prefix) != 0 || equals == std::string::npos) continue;
    const std::string name = entry.substr(prefix.size(), equals - prefix.size());
    if (!assign(s, name, entry.substr(equals + 1))) {
      std::fprintf(stderr, "SoftMetal: %s is no setting of the software device\n", entry.c_str());
      std::_Exit(86);
    }
  }
  return s;
}

}  // namespace

Settings& settings() {
  static Settings* all = from_environment();
  return *all;
}

bool set(const std::string& name, const std::string& value) {
  return assign(&settings(), name, value);
}

void violation(const std::string& message) {
  std::fprintf(stderr, "SoftMetal: validation: %s\n", message.c_str());
  std::fflush(nullptr);
  std::_Exit(86);
}

}  // namespace softmetal
