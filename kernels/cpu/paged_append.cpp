// paged_append: rows of many requests to the pages that their tables name. A task takes heads, all
// rows of them in order: tables that name a page twice let no two tasks write the same element.
#include <cstring>

#include "kernels/cpu/pages.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::PagedAppendParams;

constexpr size_t kTables = 1;  // the first of the operands that say where rows go
constexpr size_t kY = 4;

void append_head(const Params& p, const KernelCall& call, int64_t head) {
  const Pages<Params> pages(p, call.operands, kTables);
  const int64_t size = element_size(p.dtype);
  const auto* x = static_cast<const char*>(call.operands[0]) + head * p.x_strides[0] * size;
  auto* y = static_cast<char*>(call.operands[kY]) + head * p.y_strides[1] * size;
  for (int64_t row = 0; row < p.length; ++row) {
    Pages<Params>::Row at;
    if (!pages.read(row, call.failure, &at)) return;
    if (at.request < 0) continue;
    const int64_t page = pages.page(at.request, at.position / p.page_tokens, call.failure);
    if (page < 0) return;
    const int64_t to = page * p.y_strides[0] + at.position % p.page_tokens * p.y_strides[2];
    std::memcpy(y + to * size, x + row * p.x_strides[1] * size,
                static_cast<size_t>(p.head_dim * size));
  }
}

void run(const KernelCall& call) {
  const auto& p = *static_cast<const Params*>(call.params);
  for (int64_t head = call.begin; head < call.end; ++head) append_head(p, call, head);
}

int64_t tasks(const void* params, int64_t) {
  const auto& p = *static_cast<const Params*>(params);
  return p.length == 0 || p.head_dim == 0 ? 0 : p.heads;
}

int64_t scratch(const void*) {
  return 0;
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const auto& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, kY + 1)) return why;
  if (const char* why = check_pages(c, p, kTables)) return why;
  const int64_t size = element_size(p.dtype);
  const Region x =
      Region().dim(p.heads, p.x_strides[0]).dim(p.length, p.x_strides[1]).dim(p.head_dim, 1);
  if (const char* why = x.reads(c, 0, size)) return why;
  return cache_region(p, p.heads, p.head_dim, p.y_strides).writes(c, kY, size);
}

int64_t work(const void* params) {
  const auto& p = *static_cast<const Params*>(params);
  return saturated({p.heads, p.length, p.head_dim});
}

}  // namespace

extern const KernelEntry paged_append_kernel;
const KernelEntry paged_append_kernel = {
    "paged_append", Params::kSchema, sizeof(Params), run,     check,
    tasks,          scratch,         nullptr,        nullptr, work};

}  // namespace npusim::cpu::NPUSIM_ISA
