#include "cpp/device_code/kernel_failures.h"

#include <cstring>
#include <string>

#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"

namespace npusim {
namespace {

// struct Failure and FailureCode of kernels/cuda/common/scalar.h and kernels/metal/common/scalar.h.
struct Report {
  int32_t code;  // 0: none
  int32_t padding;
  int64_t value, limit;
};
constexpr int32_t kDivisionByZero = 2;

std::string text_of(const Report& report) {
  const std::string value = std::to_string(report.value);
  if (report.code == kDivisionByZero) return "an integer is divided by zero: " + value;
  return "a value is out of range: " + value + ", limit " + std::to_string(report.limit);
}

}  // namespace

void KernelFailures::check(const Program& program, const Method& method, std::byte* reports) const {
  static_assert(sizeof(Report) <= kReportBytes);
  for (size_t i = 0; i < commands_.size(); ++i) {
    Report report;
    std::memcpy(&report, reports + offset(i), sizeof report);
    if (report.code == 0) continue;
    std::memset(reports, 0, bytes());
    throw Error(ErrorCode::kData,
                place_of(program, method, method.commands[commands_[i]]) + ": " + text_of(report));
  }
}

}  // namespace npusim
