// Continues a text of tokens with a language model; text is the tokenizer's, of any library.
//
//   continue_text MODEL.npubin WEIGHTS NEW_TOKENS TOKEN...
#include <cstdio>
#include <cstdlib>
#include <npusim/npusim.hpp>
#include <vector>

int main(int count, char** arguments) {
  if (count < 5) {
    std::fprintf(stderr, "usage: continue_text MODEL.npubin WEIGHTS NEW_TOKENS TOKEN...\n");
    return 2;
  }
  try {
    const npusim::Device device("cpu");
    const npusim::Program program(arguments[1]);
    const npusim::Weights weights(program, device, arguments[2]);
    const npusim::LanguageModel model(program, device, &weights);
    const npusim::LanguageSession session(model);
    std::vector<int64_t> prompt;
    for (int i = 4; i < count; ++i) prompt.push_back(std::atoll(arguments[i]));
    session.append(prompt);
    auto options = npusim::LanguageSession::options();
    options.max_new_tokens = std::atoll(arguments[3]);
    session.generate(npusim::Sampler(), options, [](int64_t token) {
      std::printf("%lld ", static_cast<long long>(token));
      std::fflush(stdout);
      return true;
    });
    std::printf("\n");
  } catch (const npusim::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
