// Fuzzes session files: whatever the bytes, LanguageSession::load refuses them with an Error and
// leaves the session as it was, or the session goes on from there as any other: it steps, forks,
// rewinds and is saved as a file that loads again.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "cpp/runtime/error.h"
#include "cpp/runtime/language_session.h"
#include "cpp/runtime/sampler.h"
#include "tests/cpp/chain_language_model.h"

namespace npusim {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Bytes with a path, in memory.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : descriptor_(memfd_create("session", 0)) {
    require(descriptor_ >= 0 && write(descriptor_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

std::shared_ptr<LanguageModel> model() {
  static const tests::ChainProgram program(true);
  static const auto made = program.load(open_device("cpu", {{"threads", 1}}));
  return made;
}

void go_on(LanguageSession& session) {
  Sampler sampler(SamplingOptions{});
  const int64_t room = model()->facts().max_context - session.position();
  try {
    if (session.position() > 0 && room > 0) session.step(sampler);
    if (session.position() > 0) session.logits();
  } catch (const Error& error) {  // scores that the file brought may all be NaN
    require(error.code() == ErrorCode::kData);
  }
  const auto twin = session.fork();
  require(twin->tokens() == session.tokens());
  session.rewind(session.position() / 2);
  const int64_t token = 7;
  if (session.position() < model()->facts().max_context) session.append({&token, 1});
}

}  // namespace
}  // namespace npusim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace npusim;
  const MemoryFile file(data, size);
  LanguageSession session(model());
  const int64_t token = 3;
  session.append({&token, 1});
  try {
    session.load(file.path());
  } catch (const Error&) {  // a refusal is an answer
    require(session.tokens() == std::vector<int64_t>{3});
  }
  go_on(session);
  return 0;
}
