// Steps over the method `step` of a program, whose caches lie in pages. The sizes T (rows) and R
// (requests) are chosen by each call:
//
//   step(tokens int64[1, T], positions int64[T], requests int[T], tables int[R, P], rows int64[R])
//     -> logits[R, vocab], or with them best int64[R], highest[R]
//
// Row t is a token of request requests[t] of the step, at positions[t]; rows of one request follow
// each other. tables[r] are the pages of request r, -1 behind them. rows[r] is the row whose scores
// are wanted of request r; -1: none, and what stands there then is nobody's to read. Rows of one
// request whose scores are all wanted stand there as one request each, with the same table. A row
// writes what it leaves in the pools to its request's page of its position, and sees what lies
// there up to it. The integers are int64 or int32. best[r] is a token of the highest score of r,
// highest[r] that score: with them, steps whose requests want no more leave the scores on the
// device.
//
// A page's part of a pool lies in one piece, pages behind each other.
//
// Where a program brings device code for some sizes alone, a step takes the least of these that has
// room for it, and is filled up with rows of no request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cpp/runtime/executor.h"
#include "cpp/runtime/metadata.h"
#include "cpp/serve/step_entries.h"
#include "cpp/serve/step_runner.h"
#include "cpp/serve/step_tables.h"

namespace npusim::serve {

class PagedModel : public StepRunner {
 public:
  // `weights` may be null where the program has none. Throws Error(kInput) for a program without
  // the method, Error(kFormat) for one whose method contradicts its metadata, and what Executor and
  // State throw.
  PagedModel(std::shared_ptr<const Program> program, std::shared_ptr<Device> device,
             std::shared_ptr<const Weights> weights);

  RunnerFacts facts() const override { return facts_; }
  void start(const StepPlan& plan) override;
  std::span<const float> finish() override;
  std::span<const int64_t> best() const override { return best_; }
  StartTimes start_times() const override { return start_times_; }

 private:
  // An input of the method, as it is filled for a step; of the tables the dtype alone.
  struct Input {
    DType dtype{};
    std::vector<int64_t> values;
  };
  // A state in pages.
  struct Pool {
    uint32_t buffer;
    int64_t page_bytes;
  };
  struct Sizes {
    int64_t tokens, requests;
  };
  // What there is device code for.
  struct Form {
    Sizes sizes;
    std::vector<int64_t> symbols;  // the values of the method's
  };
  enum : size_t { kTokens, kPositions, kRequests, kTables, kRows, kInputs };

  void check_facts(const LanguageModelFacts& facts);
  void find_pools(const Metadata& metadata);
  void find_inputs();
  void find_outputs();
  void find_sizes();
  void fill(const StepPlan& plan);
  void choose_sizes(const StepPlan& plan);
  void choose_entries(const StepPlan& plan);
  void put_rows(const StepRows& rows, int64_t entry);
  void put_entry(const StepRows& rows, int64_t entry, size_t first, size_t count, bool is_wanted);
  void copy_pages(std::span<const PageCopy> copies);
  int64_t table_bytes() const noexcept {
    return table_length_ * dtype_size(inputs_[kTables].dtype);
  }
  void stage(std::span<const int64_t> values, DType dtype, int64_t to);
  void stage_all();
  void send();
  void place_outputs();
  void find_best();
  std::vector<int64_t> sizes_of(const Sizes& sizes) const;
  std::span<const float> scores_of(int64_t request);
  int64_t best_of(int64_t request, int64_t token, float highest);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<const Weights> weights_;
  RunnerFacts facts_;
  Executor executor_;
  size_t method_ = 0;
  std::shared_ptr<State> state_;
  int64_t table_length_ = 0;
  std::vector<Pool> pools_;
  std::vector<Input> inputs_;      // by the names above
  std::vector<size_t> order_;      // of the method's inputs: which of these each is
  std::shared_ptr<Memory> given_;  // all inputs of a step, the tables first
  std::vector<std::byte> staged_;  // what of them goes to the device
  size_t staged_bytes_ = 0;
  std::vector<Upload> uploads_;
  size_t filled_ = 0;  // rows, so far
  StepEntries entries_;
  StepTables tables_;
  std::vector<Form> prepared_;  // by sizes, ascending; none: all sizes will do
  DType logits_dtype_{};
  std::shared_ptr<Memory> logits_, found_;  // found_: best, and behind them highest
  std::vector<size_t> outputs_;             // of the method: 0 logits, 1 best, 2 highest
  StartTimes start_times_;
  Form form_;                              // of the step that runs
  std::vector<int64_t> slots_, entry_of_;  // of its rows, in the plan's order
  std::vector<Binding> bound_inputs_, bound_outputs_;
  std::vector<int64_t> wanted_, wanted_best_;  // and its requests with scores, with a best token
  std::vector<std::byte> raw_;
  std::vector<float> row_, scores_, highest_;
  std::vector<int64_t> found_tokens_, best_;
};

}  // namespace npusim::serve
