// What kernels of GPUs tell of values that they cannot serve: a report for each command of a method
// that can fail, in memory that the host reads when the work has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpp/runtime/program.h"

namespace npusim {

// Which commands can fail, each with the place of its report.
class KernelFailures {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  // Returns the number of a command's report; commands come in order.
  size_t add(size_t command) {
    commands_.push_back(command);
    return commands_.size() - 1;
  }
  bool empty() const noexcept { return commands_.empty(); }
  size_t bytes() const noexcept { return commands_.size() * kReportBytes; }  // of all reports
  static constexpr size_t offset(size_t report) noexcept { return report * kReportBytes; }

  // Where a kernel has reported: clears all reports, and throws Error(kData) that names the first
  // such command with its value. `reports` has bytes() bytes, zero before the work.
  void check(const Program& program, const Method& method, std::byte* reports) const;

 private:
  static constexpr size_t kReportBytes = 32;

  std::vector<size_t> commands_;
};

}  // namespace npusim
