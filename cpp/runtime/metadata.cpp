#include "cpp/runtime/metadata.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "cpp/runtime/error.h"
#include "cpp/runtime/json.h"
#include "cpp/runtime/utf8.h"

namespace npusim {
namespace {

constexpr size_t kMaxRank = 32;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::kFormat, "The program's metadata: " + why + ". Compile the model again.");
}

class MetadataReader {
 public:
  explicit MetadataReader(const Program& program)
      : program_(program), json_(program.metadata, "The program's metadata") {}

  Metadata read() {
    Metadata metadata;
    json_.object([&](const std::string& key) {
      if (key == "states") {
        metadata.states.clear();
        json_.array([&] { metadata.states.push_back(read_state()); });
      } else if (key == "language_model") {
        metadata.language_model = read_language_model();
      } else {
        json_.skip();
      }
    });
    json_.end();
    check_distinct(metadata.states);
    return metadata;
  }

 private:
  StateTensor read_state() {
    StateTensor state;
    int64_t buffer = -1;
    bool has_dtype = false;
    json_.object([&](const std::string& key) {
      if (key == "name") {
        state.name = json_.string();
      } else if (key == "buffer") {
        buffer = json_.natural();
      } else if (key == "dtype") {
        state.dtype = dtype_named(json_.string());
        has_dtype = true;
      } else if (key == "shape") {
        state.shape = naturals();
      } else {
        json_.skip();
      }
    });
    if (state.name.empty() || buffer < 0 || !has_dtype) {
      refuse("a state needs name, buffer, dtype and shape");
    }
    check_fits(state, buffer);
    state.buffer = static_cast<uint32_t>(buffer);
    return state;
  }

  LanguageModelFacts read_language_model() {
    LanguageModelFacts facts;
    json_.object([&](const std::string& key) {
      if (key == "max_context") {
        facts.max_context = json_.natural();
      } else if (key == "prefill_chunk") {
        facts.prefill_chunk = json_.natural();
      } else if (key == "larger_chunks") {
        facts.larger_chunks = naturals();
      } else if (key == "vocab_size") {
        facts.vocab_size = json_.natural();
      } else if (key == "eos_token_ids") {
        facts.eos_token_ids = naturals();
      } else if (key == "position") {
        facts.position = json_.string();
      } else if (key == "token") {
        facts.token = json_.string();
      } else if (key == "history") {
        facts.history = json_.string();
      } else if (key == "caches") {
        facts.caches.clear();
        json_.array([&] { facts.caches.push_back(read_cache()); });
      } else if (key == "recurrent") {
        facts.recurrent.clear();
        json_.array([&] { facts.recurrent.push_back(json_.string()); });
      } else if (key == "serve") {
        facts.serve = read_serve();
      } else {
        json_.skip();
      }
    });
    return facts;
  }

  ServeFacts read_serve() {
    ServeFacts facts;
    json_.object([&](const std::string& key) {
      if (key == "page_tokens") {
        facts.page_tokens = json_.natural();
      } else if (key == "max_step_tokens") {
        facts.max_step_tokens = json_.natural();
      } else if (key == "max_requests") {
        facts.max_requests = json_.natural();
      } else if (key == "pools") {
        facts.pools.clear();
        json_.array([&] { facts.pools.push_back(json_.string()); });
      } else {
        json_.skip();
      }
    });
    return facts;
  }

  CacheFacts read_cache() {
    CacheFacts cache;
    json_.object([&](const std::string& key) {
      if (key == "state") {
        cache.state = json_.string();
      } else if (key == "axis") {
        cache.axis = json_.natural();
      } else {
        json_.skip();
      }
    });
    return cache;
  }

  std::vector<int64_t> naturals() {
    std::vector<int64_t> values;
    json_.array([&] { values.push_back(json_.natural()); });
    return values;
  }

  DType dtype_named(std::string_view name) const {
    for (int code = 0; code <= static_cast<int>(DType::kBool); ++code) {
      if (dtype_name(static_cast<DType>(code)) == name) return static_cast<DType>(code);
    }
    json_.refuse("npusim has no dtype " + quote_name(name));
  }

  // Verifies that the state is exactly a kState buffer of the program.
  void check_fits(const StateTensor& state, int64_t index) const {
    const std::string what = "state " + quote_name(state.name);
    if (index >= static_cast<int64_t>(program_.buffers.size()) ||
        program_.buffers[static_cast<size_t>(index)].kind != BufferKind::kState) {
      refuse(what + ": buffer " + std::to_string(index) + " is no state");
    }
    if (state.shape.size() > kMaxRank) refuse(what + " has more than 32 dimensions");
    const int64_t bytes = program_.buffers[static_cast<size_t>(index)].bytes;
    int64_t elements = 1;
    for (const int64_t dim : state.shape) {
      if (dim < 1 || elements > bytes / dim) refuse(what + " is larger than its buffer");
      elements *= dim;
    }
    if (elements > bytes / dtype_size(state.dtype) || elements * dtype_size(state.dtype) != bytes) {
      refuse(what + " does not have the bytes of its buffer");
    }
  }

  static void check_distinct(const std::vector<StateTensor>& states) {
    std::vector<std::string_view> names;
    std::vector<uint32_t> buffers;
    for (const StateTensor& state : states) {
      names.push_back(state.name);
      buffers.push_back(state.buffer);
    }
    std::sort(names.begin(), names.end());
    std::sort(buffers.begin(), buffers.end());
    if (std::adjacent_find(names.begin(), names.end()) != names.end() ||
        std::adjacent_find(buffers.begin(), buffers.end()) != buffers.end()) {
      refuse("a state appears twice");
    }
  }

  const Program& program_;
  JsonReader json_;
};

}  // namespace

Metadata read_metadata(const Program& program) {
  if (program.metadata.empty()) return {};
  return MetadataReader(program).read();
}

namespace {

using NamedSizes = std::vector<std::pair<std::string, int64_t>>;

// Calls f for each combination of sizes that a method was prepared for.
void for_prepared(const Program& program, std::string_view method,
                  const std::function<void(const NamedSizes&)>& f) {
  if (program.metadata.empty()) return;
  JsonReader json(program.metadata, "The program's metadata");
  const auto combination = [&] {
    NamedSizes sizes;
    json.object([&](const std::string& symbol) { sizes.emplace_back(symbol, json.natural()); });
    f(sizes);
  };
  json.object([&](const std::string& key) {
    if (key != "prepared_sizes") return json.skip();
    json.object([&](const std::string& name) {
      if (name != method) return json.skip();
      json.array(combination);
    });
  });
}

}  // namespace

std::string prepared_sizes(const Program& program, std::string_view method) {
  std::string text;
  for_prepared(program, method, [&](const NamedSizes& sizes) {
    std::string one;
    for (const auto& [symbol, value] : sizes) {
      one += (one.empty() ? "" : ", ") + symbol + " = " + std::to_string(value);
    }
    text += (text.empty() ? "" : "; ") + one;
  });
  return text;
}

std::vector<std::vector<int64_t>> prepared_values(const Program& program, const Method& method) {
  std::vector<std::vector<int64_t>> found;
  for_prepared(program, method.name, [&](const NamedSizes& sizes) {
    std::vector<int64_t> values;
    for (const Symbol& symbol : method.sizes.symbols) {
      const auto is_it = [&](const auto& size) { return size.first == symbol.name; };
      const auto at = std::find_if(sizes.begin(), sizes.end(), is_it);
      if (at != sizes.end()) values.push_back(at->second);
    }
    if (values.size() == method.sizes.symbols.size()) found.push_back(std::move(values));
  });
  return found;
}

const StateTensor& find_state(std::span<const StateTensor> states, std::string_view name) {
  std::string known;
  for (const StateTensor& state : states) {
    if (state.name == name) return state;
    known += (known.empty() ? "" : ", ") + state.name;
  }
  throw Error(ErrorCode::kInput, "the program has no state " + quote_name(name) +
                                     (known.empty() ? "; it has none" : "; it has: " + known));
}

}  // namespace npusim
