// Programs of copy commands, made in memory: the smallest thing an executor can run.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "cpp/runtime/program.h"

namespace npusim::tests {

// Every command copies `count` floats between two buffers; the parameters live here.
class CopyProgram {
 public:
  explicit CopyProgram(int64_t count) : bytes_(count * 4), program_(std::make_shared<Program>()) {
    params_ = {.element_size = 4, .rank = 1, .shape = {}, .x_strides = {1}, .y_strides = {1}};
    std::fill(std::begin(params_.shape), std::end(params_.shape), 1);
    params_.shape[0] = count;
    program_->target = "cpu";
    program_->kernels.push_back({"copy", abi::CopyParams::kSchema, {}});
    program_->nodes.push_back({"node", "test.copy", "net.py:7"});
    program_->methods.push_back(
        {.name = "forward", .commands = {}, .inputs = {}, .outputs = {}, .arena_bytes = 0});
  }

  uint32_t buffer(BufferKind kind, int64_t offset = 0) {
    program_->buffers.push_back({kind, bytes_, offset, "buffer"});
    return static_cast<uint32_t>(program_->buffers.size() - 1);
  }
  uint32_t input() { return spec(BufferKind::kInput, program_->methods[0].inputs); }
  uint32_t output() { return spec(BufferKind::kOutput, program_->methods[0].outputs); }
  uint32_t weight(std::string_view key) {
    const uint32_t index = buffer(BufferKind::kWeight);
    program_->weights.push_back({{key}, index, DType::kFloat32, {bytes_ / 4}});
    return index;
  }

  void copy(uint32_t from, uint32_t to) { add(program_->methods[0], from, to); }
  void copy_once(uint32_t from, uint32_t to) { add(program_->init, from, to); }

  Program& operator*() { return *program_; }
  Program* operator->() { return program_.get(); }
  std::shared_ptr<const Program> get() const { return program_; }
  abi::CopyParams& params() { return params_; }

 private:
  uint32_t spec(BufferKind kind, std::vector<TensorSpec>& specs) {
    const uint32_t index = buffer(kind);
    const std::vector<int64_t> shape = {bytes_ / 4};
    specs.push_back({"tensor", index, DType::kFloat32, shape, shape});
    return index;
  }
  void add(Method& method, uint32_t from, uint32_t to) {
    operands_.push_back({Operand{from, Access::kRead, 0}, Operand{to, Access::kWrite, 0}});
    method.commands.push_back({.kernel = 0,
                               .node = 0,
                               .params = std::as_bytes(std::span(&params_, 1)),
                               .operands = operands_.back()});
  }

  int64_t bytes_;
  abi::CopyParams params_;
  std::deque<std::array<Operand, 2>> operands_;  // a deque: commands point into it
  std::shared_ptr<Program> program_;
};

}  // namespace npusim::tests
