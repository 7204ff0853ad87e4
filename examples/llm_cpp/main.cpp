// Continues a text with a language model: tokens in, tokens out, no Python.
//
//   llm_cpp MODEL.npubin WEIGHTS TOKEN,TOKEN,… [NEW_TOKENS [TEMPERATURE [SEED [THREADS]]]]
//
// WEIGHTS is what npusim_weights_open takes: a .safetensors file, an index of shards, or a folder.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <npusim/npusim.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A number by one of the standard library's functions. Throws std::invalid_argument with a
// sentence.
template <typename Parse>
auto number(const std::string& text, const char* what, Parse parse) {
  try {
    size_t used = 0;
    const auto value = parse(text, &used);
    if (used == text.size()) return value;
  } catch (const std::logic_error&) {
    // Its message is the name of the function.
  }
  throw std::invalid_argument(std::string(what) + " is a number in range, not '" + text + "'");
}

int64_t whole(const std::string& text, const char* what) {
  return number(text, what, [](const auto& t, size_t* used) { return std::stoll(t, used); });
}

double real(const std::string& text, const char* what) {
  return number(text, what, [](const auto& t, size_t* used) { return std::stod(t, used); });
}

// "3,1,4" as numbers.
std::vector<int64_t> parse_tokens(const std::string& text) {
  std::vector<int64_t> tokens;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    tokens.push_back(whole(text.substr(at, end - at), "a token"));
    at = end + 1;
  }
  return tokens;
}

void run(const std::vector<std::string>& arguments) {
  const auto argument = [&](size_t index, const char* otherwise) {
    return index < arguments.size() ? arguments[index] : std::string(otherwise);
  };
  const std::vector<int64_t> prompt = parse_tokens(arguments[2]);
  auto limits = npusim::LanguageSession::options();
  limits.max_new_tokens = whole(argument(3, "32"), "NEW_TOKENS");
  auto sampling = npusim::Sampler::options();
  sampling.temperature = real(argument(4, "0"), "TEMPERATURE");
  sampling.seed = static_cast<uint64_t>(whole(argument(5, "0"), "SEED"));
  const std::string threads = std::to_string(whole(argument(6, "0"), "THREADS"));

  const npusim::Device device("cpu", {{"threads", threads}});
  const npusim::Program program(arguments[0]);
  const npusim::Weights weights(program, device, arguments[1]);
  const npusim::LanguageModel model(program, device, &weights);
  const npusim::LanguageSession session(model);
  const npusim::Sampler sampler(sampling);

  const auto start = Clock::now();
  session.append(prompt);
  double first = 0;
  const auto made = session.generate(sampler, limits, [&](int64_t token) {
    if (first == 0) first = seconds_since(start);
    std::printf("%lld ", static_cast<long long>(token));
    std::fflush(stdout);
    return true;
  });
  const double rest = seconds_since(start) - first;

  constexpr const char* kReasons[] = {"length", "context", "stop", "caller"};
  std::printf("\n");
  std::fprintf(stderr, "%zu tokens (%s), first after %.3f s", made.token_count,
               kReasons[made.reason], first);
  if (made.token_count > 1 && rest > 0) {
    std::fprintf(stderr, ", then %.1f tokens/s", static_cast<double>(made.token_count - 1) / rest);
  }
  std::fprintf(stderr, "\n");
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  if (arguments.size() < 3 || arguments.size() > 7) {
    std::fprintf(stderr,
                 "usage: llm_cpp MODEL.npubin WEIGHTS TOKEN,TOKEN,... "
                 "[NEW_TOKENS [TEMPERATURE [SEED [THREADS]]]]\n");
    return 2;
  }
  try {
    run(arguments);
  } catch (const std::exception& error) {  // npusim::Error says what to do about it
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
