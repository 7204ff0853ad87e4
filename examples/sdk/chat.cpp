// A conversation with a language model, in text.
//
//   chat MODEL.npubin WEIGHTS TOKENIZER.model [TEMPLATE [TEMPERATURE [SEED]]]
//
// Each line of the standard input is what the user says; the answer appears as it is made, and
// Ctrl-C ends it. TEMPLATE is how the model was taught to be asked, with %s for the line; its
// default is
// "<user>%s<bot>". The conversation is one session: nothing that was said is computed twice.
//
// The tokenizer is SentencePiece (https://github.com/google/sentencepiece): the library that Llama
// 2, Mistral, Gemma and T5 were trained with, in C++ itself, and packaged by Debian
// (libsentencepiece-dev), Homebrew and vcpkg. It reads the tokenizer.model that lies beside such a
// checkpoint.
#include <sentencepiece_processor.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <npusim/npusim.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

volatile std::sig_atomic_t interrupted = 0;
void interrupt(int) {
  interrupted = 1;
}

class Tokenizer {
 public:
  explicit Tokenizer(const std::string& path) {
    const auto status = pieces_.Load(path);
    if (!status.ok()) throw std::runtime_error("the tokenizer: " + status.ToString());
  }
  int size() const { return pieces_.GetPieceSize(); }
  int end() const { return pieces_.eos_id(); }
  // What begins a text; nothing where the model has no such token.
  std::vector<int64_t> begin() const {
    return pieces_.bos_id() < 0 ? std::vector<int64_t>{} : std::vector<int64_t>{pieces_.bos_id()};
  }
  void encode(const std::string& text, std::vector<int64_t>& tokens) const {
    std::vector<int> ids;
    if (!pieces_.Encode(text, &ids).ok()) throw std::runtime_error("the text is no UTF-8");
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  std::string decode(const std::vector<int>& ids) const {
    std::string text;
    pieces_.Decode(ids, &text).IgnoreError();
    return text;
  }

 private:
  sentencepiece::SentencePieceProcessor pieces_;
};

// Text that grows with its tokens: prints what is new and will not change any more.
class Printed {
 public:
  explicit Printed(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void add(int64_t token) {
    if (token == tokenizer_.end()) return;
    ids_.push_back(static_cast<int>(token));
    const std::string text = tokenizer_.decode(ids_);
    constexpr const char* kHalf = "\xEF\xBF\xBD";  // a character whose bytes are not all there
    const bool whole = text.size() < 3 || text.compare(text.size() - 3, 3, kHalf) != 0;
    if (whole && text.size() > shown_) {
      std::cout << text.substr(shown_) << std::flush;
      shown_ = text.size();
    }
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int> ids_;
  size_t shown_ = 0;
};

std::string filled(const std::string& pattern, const std::string& line) {
  const size_t at = pattern.find("%s");
  if (at == pattern.npos) throw std::runtime_error("TEMPLATE has no %s");
  return pattern.substr(0, at) + line + pattern.substr(at + 2);
}

void chat(const std::vector<std::string>& arguments) {
  const auto argument = [&](size_t index, const char* otherwise) {
    return index < arguments.size() ? arguments[index] : std::string(otherwise);
  };
  const Tokenizer tokenizer(arguments[2]);
  const std::string pattern = argument(3, "<user>%s<bot>");
  auto sampling = npusim::Sampler::options();
  sampling.temperature = std::strtod(argument(4, "0").c_str(), nullptr);
  sampling.seed = std::strtoull(argument(5, "0").c_str(), nullptr, 10);

  const npusim::Device device("cpu");
  const npusim::Program program(arguments[0]);
  const npusim::Weights weights(program, device, arguments[1]);
  const npusim::LanguageModel model(program, device, &weights);
  if (model.info().vocab_size < tokenizer.size()) {
    throw std::runtime_error("the tokenizer has more tokens than the model");
  }
  const npusim::LanguageSession session(model);
  const npusim::Sampler sampler(sampling);
  auto options = npusim::LanguageSession::options();
  const int64_t end = tokenizer.end();
  options.stop_tokens = &end;
  options.stop_token_count = end < 0 ? 0 : 1;

  std::signal(SIGINT, interrupt);
  std::string line;
  for (std::vector<int64_t> tokens = tokenizer.begin(); std::getline(std::cin, line);
       tokens.clear()) {
    tokenizer.encode(filled(pattern, line), tokens);
    session.append(tokens);
    Printed printed(tokenizer);
    interrupted = 0;
    const auto made = session.generate(sampler, options, [&](int64_t token) {
      printed.add(token);
      return interrupted == 0;
    });
    std::cout << std::endl;
    if (made.reason == NPUSIM_FINISHED_CONTEXT) {
      throw std::runtime_error("the conversation is as long as the model can hold");
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr,
                 "usage: chat MODEL.npubin WEIGHTS TOKENIZER.model "
                 "[TEMPLATE [TEMPERATURE [SEED]]]\n");
    return 2;
  }
  try {
    chat(std::vector<std::string>(arguments + 1, arguments + count));
  } catch (const std::exception& error) {  // npusim::Error is one
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
  return 0;
}
