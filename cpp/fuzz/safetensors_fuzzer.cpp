// Fuzzes the safetensors loader and its JSON cursor: whatever the bytes, they are refused with an
// Error, or every tensor's bytes lie inside them and find() finds every name.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "cpp/runtime/error.h"
#include "cpp/runtime/json.h"
#include "cpp/runtime/safetensors.h"

namespace npusim {
namespace {

uint64_t sink;  // what is read ends here, so that no read is optimised away

void walk(const Checkpoint& checkpoint, std::span<const std::byte> file) {
  size_t total = 0;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (checkpoint.find(tensor.name) != &tensor) std::abort();
    for (const std::byte b : tensor.data) sink += std::to_integer<uint64_t>(b);
    total += tensor.data.size();
  }
  if (total > file.size()) std::abort();
}

}  // namespace
}  // namespace npusim

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    npusim::walk(*npusim::Checkpoint::from_bytes(bytes, "input"), bytes);
  } catch (const npusim::Error&) {  // a refusal is an answer
  }
  try {  // the part of the cursor that only indices need
    npusim::JsonReader json({reinterpret_cast<const char*>(data), size}, "input");
    json.skip();
    json.end();
  } catch (const npusim::Error&) {
  }
  return 0;
}
