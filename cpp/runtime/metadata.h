// What the runtime reads of a program's metadata: the names of its states, the facts of a language
// model, and for messages the sizes it was prepared for. Nothing else of that JSON matters to it,
// and other programs need none.
//
//   "states": [{"name", "buffer", "dtype", "shape"}, …]
//   "language_model": {"max_context", "prefill_chunk", "vocab_size", "eos_token_ids": […],
//                      "position": state, "caches": [{"state", "axis"}, …],
//                      "larger_chunks": […], where there are such methods,
//                      "recurrent": [state, …], where there are such states,
//                      "token": state, "history": state, where there is a method `generate`
//                      "serve": {"page_tokens", "max_step_tokens", "max_requests",
//                                "pools": [state, …]}}, where there is a method `step`
//   "prepared_sizes": {method: [{symbol: size, …}, …], …}, of device code for symbolic sizes
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/runtime/program.h"

namespace npusim {

// A kState buffer as a dense, row-major tensor.
struct StateTensor {
  std::string name;
  uint32_t buffer = 0;
  DType dtype{};
  std::vector<int64_t> shape;
};

// A state that grows by a row for each token; the rows lie along `axis`.
struct CacheFacts {
  std::string state;
  int64_t axis = 0;
};

// Of the method `step`, which takes rows of many requests (cpp/serve/paged_model.h).
struct ServeFacts {
  int64_t page_tokens = 0, max_step_tokens = 0, max_requests = 0;
  std::vector<std::string> pools;  // states whose first dimension are pages
};

struct LanguageModelFacts {
  int64_t max_context = 0, prefill_chunk = 0, vocab_size = 0;
  std::vector<int64_t> larger_chunks;  // of prefill_<chunk>, ascending
  std::vector<int64_t> eos_token_ids;
  std::string position;  // the state that counts the tokens fed
  std::string token;     // what `generate` appends and chooses; empty: there is no such method
  std::string history;   // the tokens after it, a row each, for the same method
  std::vector<CacheFacts> caches;
  std::vector<std::string> recurrent;  // states that every token changes as a whole
  std::optional<ServeFacts> serve;
};

struct Metadata {
  std::vector<StateTensor> states;  // in the file's order; names are distinct
  std::optional<LanguageModelFacts> language_model;
};

// Throws Error(kFormat) for text that is not JSON, lacks a field, or does not fit the program's
// buffers. What the facts of a language model ask of the program is LanguageModel's to check.
Metadata read_metadata(const Program& program);

// The sizes that a program brings device code for, as text: "batch = 1; batch = 8". Empty where the
// metadata does not say.
std::string prepared_sizes(const Program& program, std::string_view method);
// The same as values of the method's symbols, in their order; combinations that name others are
// left out.
std::vector<std::vector<int64_t>> prepared_values(const Program& program, const Method& method);

// Throws Error(kInput), with the names there are.
const StateTensor& find_state(std::span<const StateTensor> states, std::string_view name);

}  // namespace npusim
