// The contract between the CPU backend and its kernels.
//
// Every file of this folder but table.cpp is one stem: it defines its KernelEntry (or entries)
// inside `namespace npusim::cpu::NPUSIM_ISA`, and is compiled once per instruction set with
// NPUSIM_ISA set to that set's name (baseline, avx2, avx512, avx512bf16, neon). table.cpp lists the
// entries; the backend picks the best table the processor can run. Kernels include no runtime
// header, use no intrinsics (simd.h has the vectors), allocate nothing and throw nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/shared/abi.h"

#ifndef NPUSIM_ISA
#define NPUSIM_ISA baseline
#endif

namespace npusim::cpu {

// How a kernel reports what only running can reveal (an index out of range). The first failure
// wins; the others are dropped. Safe to call from several workers at once.
struct Failure {
  virtual void report(const char* what, int64_t value, int64_t limit) noexcept = 0;

 protected:
  ~Failure() = default;
};

// One invocation over tasks [begin, end) of a command. Tasks of a command may run in any order,
// on any worker, at the same time; each output element is written by exactly one task.
struct KernelCall {
  const void* params;     // the kernel's struct of abi.h, 8-byte aligned
  void* const* operands;  // in the order abi.h documents; alignment is that of one element
  int64_t begin, end;
  void* scratch;  // scratch(params) bytes, 64-byte aligned, private to this worker
  Failure* failure;
  bool first = true;  // else scratch is what an earlier call of the same run of this command left
};

// The elements of an operand that a command touches, as its check() found them: a strided walk from
// the operand's offset. The backend holds the walks of a command against each other.
struct OperandWalk {
  static constexpr int kMost = 2 * abi::kRank;

  int64_t bytes = 0;  // of an element; 0: anything of the operand may be touched
  int64_t count = 0;  // elements, those that are visited more than once too
  int64_t steps = 0;  // of the loops around them: as count, with empty dimensions left out
  int rank = 0;       // dimensions of more than one element
  int64_t sizes[kMost] = {}, strides[kMost] = {};  // in elements
};

// What is known of a command at load. `check` must prove from it that no task can touch memory
// outside the operands, whatever the parameter bytes are: they come from a file.
struct KernelCheck {
  const void* params;
  std::span<const int64_t> operand_bytes;  // extent of each operand from its offset to the end
  // Bytes of the same buffer that lie before the operand's offset (negative strides reach them).
  std::span<const int64_t> operand_before;
  std::span<OperandWalk> walks = {};  // one an operand, which check() fills in; or none
};

struct KernelEntry {
  const char* name;
  const char* schema;  // abi::XxxParams::kSchema
  size_t params_size;  // sizeof(abi::XxxParams)
  void (*run)(const KernelCall&);
  const char* (*check)(const KernelCheck&);               // nullptr: sound; else the reason
  int64_t (*tasks)(const void* params, int64_t workers);  // >= 0; 1 runs on the caller alone
  int64_t (*scratch)(const void* params);                 // bytes a worker
  // How many operands, counted from the last, the kernel writes; it only reads the others. Null: 1.
  int (*outputs)(const void* params) = nullptr;
  // The output that operand `read` may lie under, element on element (the kernel reads each before
  // it writes there), counted from the first output; or -1. Null: none may. No other operand may
  // share memory with an output.
  int (*in_place)(const void* params, int read) = nullptr;
  // Steps of the innermost loops of all tasks, an upper bound, of parameters that check() accepts.
  // Null: as many as the walks of its operands visit elements.
  int64_t (*work)(const void* params) = nullptr;
};

}  // namespace npusim::cpu
