// A language model made in memory: after token t most likely comes t + 1, modulo the vocabulary.
// Each run notes the first of its tokens in a cache. What models really compute is tested from
// Python. Where it `generates`, there is a method of that name.
#pragma once

#include <array>
#include <bit>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cpp/runtime/language_model.h"
#include "cpp/runtime/program.h"
#include "kernels/shared/abi.h"

namespace npusim::tests {

class ChainProgram {
 public:
  static constexpr int64_t kVocabulary = 100, kContext = 40, kChunk = 8;

  explicit ChainProgram(bool generates = false) : program_(std::make_shared<Program>()) {
    Program& p = *program_;
    p.target = "cpu";
    p.fingerprint = 0xC0FFEE;
    p.kernels = {{"index", abi::IndexParams::kSchema, {}},
                 {"copy", abi::CopyParams::kSchema, {}},
                 {"scatter", abi::ScatterParams::kSchema, {}},
                 {"sample", abi::SampleParams::kSchema, {}}};
    p.nodes.push_back({"node", "test.chain", "net.py:7"});
    position_ = buffer(BufferKind::kState, 8, 0);
    cache_ = buffer(BufferKind::kState, kContext * 8, 64);
    p.state_bytes = 64 + kContext * 8;
    if (generates) {
      token_ = buffer(BufferKind::kState, 8, 384);
      history_ = buffer(BufferKind::kState, kContext * 8, 448);
      p.state_bytes = 448 + kContext * 8;
    }
    for (int64_t row = 0; row < kVocabulary; ++row) {
      table_.at(static_cast<size_t>(row * kVocabulary + (row + 1) % kVocabulary)) = 5.0f;
    }
    constants_ = buffer(BufferKind::kConstant, static_cast<int64_t>(table_.size() * 4), 0);
    table_.insert(table_.end(), {std::bit_cast<float>(1), 0.0f});  // an int64
    one_ = buffer(BufferKind::kConstant, 8, static_cast<int64_t>(table_.size() * 4 - 8));
    p.constants = std::as_bytes(std::span(table_));
    metadata_ =
        R"({"graph": {"nodes": []}, "states": [)"
        R"({"name": "at", "buffer": 0, "dtype": "int64", "shape": [1]},)"
        R"({"name": "seen", "buffer": 1, "dtype": "int64", "shape": [40]})" +
        std::string(generates
                        ? R"(, {"name": "said", "buffer": 2, "dtype": "int64", "shape": [1]},)"
                          R"({"name": "text", "buffer": 3, "dtype": "int64", "shape": [40]})"
                        : "") +
        "],"
        R"("language_model": {"max_context": 40, "prefill_chunk": 8, "vocab_size": 100,)"
        R"("eos_token_ids": [99], "position": "at", "caches": [{"state": "seen", "axis": 0}])" +
        std::string(generates ? R"(, "token": "said", "history": "text"}})" : "}}");
    p.metadata = metadata_;
    method("prefill", kChunk, true);
    method("decode", 1, false);
    if (generates) generate();
  }

  std::shared_ptr<LanguageModel> load(std::shared_ptr<Device> device) const {
    return std::make_shared<LanguageModel>(program_, std::move(device), nullptr);
  }
  Program& operator*() { return *program_; }
  void set_metadata(std::string text) {
    metadata_ = std::move(text);
    program_->metadata = metadata_;
  }
  const std::string& metadata() const { return metadata_; }

 private:
  uint32_t buffer(BufferKind kind, int64_t bytes, int64_t offset = 0) {
    program_->buffers.push_back({kind, bytes, offset, "buffer"});
    return static_cast<uint32_t>(program_->buffers.size() - 1);
  }

  void method(std::string_view name, int64_t tokens, bool has_length) {
    Method made{.name = name, .commands = {}, .inputs = {}, .outputs = {}, .arena_bytes = 0};
    const auto spec = [&](std::vector<TensorSpec>& specs, std::string_view what, BufferKind kind,
                          DType dtype, std::vector<int64_t> shape) {
      const uint32_t index = buffer(kind, shape.back() * dtype_size(dtype));
      specs.push_back({what, index, dtype, shape, shape});
      return index;
    };
    const uint32_t ids =
        spec(made.inputs, "tokens", BufferKind::kInput, DType::kInt64, {1, tokens});
    const uint32_t length =
        has_length ? spec(made.inputs, "length", BufferKind::kInput, DType::kInt64, {1}) : one_;
    const uint32_t logits =
        spec(made.outputs, "logits", BufferKind::kOutput, DType::kFloat32, {1, 1, kVocabulary});
    command(made, 0, look_up(),
            {{constants_, Access::kRead, 0}, {ids, Access::kRead, 0}, {logits, Access::kWrite, 0}});
    command(made, 1, note(), {{ids, Access::kRead, 0}, {cache_, Access::kWrite, 0}});
    command(made, 2, advance(), {{length, Access::kRead, 0}, {position_, Access::kReadWrite, 0}});
    program_->methods.push_back(std::move(made));
  }

  void generate() {
    Method made{
        .name = "generate", .commands = {}, .inputs = {}, .outputs = {}, .arena_bytes = 448};
    const uint32_t sampling = buffer(BufferKind::kInput, 40), seed = buffer(BufferKind::kInput, 8);
    const uint32_t chosen = buffer(BufferKind::kOutput, 8);
    const uint32_t logits = buffer(BufferKind::kTemp, kVocabulary * 4);
    made.inputs = {{"sampling", sampling, DType::kFloat64, {5}, {5}},
                   {"seed", seed, DType::kInt64, {1}, {1}}};
    made.outputs = {{"chosen", chosen, DType::kInt64, {1}, {1}}};
    command(
        made, 0, look_up(),
        {{constants_, Access::kRead, 0}, {token_, Access::kRead, 0}, {logits, Access::kWrite, 0}});
    command(made, 1, note(), {{token_, Access::kRead, 0}, {cache_, Access::kWrite, 0}});
    command(made, 2, advance(), {{one_, Access::kRead, 0}, {position_, Access::kReadWrite, 0}});
    sample_params_ = {.size = kVocabulary, .capacity = kContext, .dtype = 0};
    command(made, 3, std::as_bytes(std::span(&sample_params_, 1)),
            {{logits, Access::kRead, 0},
             {sampling, Access::kRead, 0},
             {seed, Access::kRead, 0},
             {position_, Access::kRead, 0},
             {token_, Access::kReadWrite, 0},
             {history_, Access::kReadWrite, 0},
             {chosen, Access::kWrite, 0}});
    program_->methods.push_back(std::move(made));
  }

  std::span<const std::byte> look_up() {
    abi::IndexParams& p = index_params_.emplace_back();
    p = {};
    p.element_size = 4;
    p.idx_dtype = static_cast<int32_t>(DType::kInt64);
    p.n = p.rank = 1;
    std::fill(std::begin(p.shape), std::end(p.shape), 1);
    p.shape[0] = kVocabulary;
    p.x_strides[0] = p.y_strides[0] = 1;
    p.k_size[0] = p.k_stride[0] = kVocabulary;
    return std::as_bytes(std::span(&p, 1));
  }
  std::span<const std::byte> note() {
    abi::CopyParams& p = copy_params_.emplace_back();
    p = {};
    p.element_size = 8;
    p.rank = 1;
    std::fill(std::begin(p.shape), std::end(p.shape), 1);
    p.x_strides[0] = p.y_strides[0] = 1;
    return std::as_bytes(std::span(&p, 1));
  }
  std::span<const std::byte> advance() {
    abi::ScatterParams& p = scatter_params_.emplace_back();
    p = {};
    p.mode = 1;
    p.dtype = p.idx_dtype = static_cast<int32_t>(DType::kInt64);
    p.rank = 1;
    std::fill(std::begin(p.shape), std::end(p.shape), 1);
    return std::as_bytes(std::span(&p, 1));
  }
  void command(Method& method, uint32_t kernel, std::span<const std::byte> params,
               std::vector<Operand> operands) {
    operands_.push_back(std::move(operands));
    method.commands.push_back(
        {.kernel = kernel, .node = 0, .params = params, .operands = operands_.back()});
  }

  std::shared_ptr<Program> program_;
  uint32_t position_ = 0, cache_ = 0, constants_ = 0, one_ = 0, token_ = 0, history_ = 0;
  std::vector<float> table_ = std::vector<float>(kVocabulary * kVocabulary);
  std::string metadata_;
  std::deque<abi::IndexParams> index_params_;  // deques: commands point into them
  std::deque<abi::CopyParams> copy_params_;
  std::deque<abi::ScatterParams> scatter_params_;
  abi::SampleParams sample_params_{};
  std::deque<std::vector<Operand>> operands_;
};

}  // namespace npusim::tests
