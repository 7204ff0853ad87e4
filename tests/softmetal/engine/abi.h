// What a compiled MSL library and the engine that runs it know of each other. Included by both: by
// the shim's metal_stdlib as C++14 without a standard library, by the engine as C++20.
#pragma once

namespace softmetal {

constexpr unsigned kAbi = 1;
constexpr unsigned kSimdWidth = 32;
constexpr unsigned kSlotBytes = 64;  // what one lane can give the others at a meeting point

// One MSL thread of the threadgroup that runs; the engine fills in what built-in arguments read.
struct Thread {
  unsigned thread_position_in_grid[3];
  unsigned thread_position_in_threadgroup[3];
  unsigned threadgroup_position_in_grid[3];
  unsigned threads_per_threadgroup[3];           // fewer at the edge of a grid
  unsigned dispatch_threads_per_threadgroup[3];  // as the dispatch said
  unsigned threadgroups_per_grid[3];
  unsigned threads_per_grid[3];
  unsigned thread_index_in_threadgroup;
  unsigned thread_index_in_simdgroup;
  unsigned simdgroup_index_in_threadgroup;
  unsigned simdgroups_per_threadgroup;
  unsigned dispatch_simdgroups_per_threadgroup;
  void* const* buffers;              // by [[buffer(n)]]
  void* const* threadgroup_buffers;  // by [[threadgroup(n)]]
  void* const* variables;            // threadgroup variables of the kernel, in order
};

// A meeting point: all lanes of a SIMD group, or all threads of a threadgroup, have to come to the
// same one.
struct Site {
  const char* operation;
  unsigned line, column;
};

struct Meeting {
  const unsigned char* slots;  // kSlotBytes a lane
  unsigned lanes;              // who takes part, a bit a lane
};

// What kernels call. `current` is the thread that runs.
struct Engine {
  Thread* current;
  void (*threadgroup_barrier)(Site site);
  void (*simdgroup_barrier)(Site site);
  Meeting (*meet)(Site site, const void* value, unsigned bytes);
  int matrix_layout;  // which lane holds which elements of a simdgroup_matrix: 0 or 1
};

enum Space : int { kDevice, kConstant, kThreadgroup };

struct Binding {
  const char* name;
  Space space;
  unsigned index;
  unsigned size, alignment;  // of one element, in bytes
  bool writable;
};

struct Variable {
  unsigned index;
  unsigned long size, alignment;  // bytes
};

struct FunctionConstant {
  const char* name;
  unsigned index;
  unsigned type;    // MTLDataType
  unsigned offset;  // in Library::constant_values
  unsigned size;
};

struct Kernel {
  const char* name;
  void (*run)(const Thread*);
  const Binding* bindings;
  unsigned binding_count;
  const Variable *variables_begin, *variables_end;
  unsigned max_threads;       // 0: as many as the device takes
  const unsigned* constants;  // those it reads, as places in Library::constants
  unsigned constant_count;
};

struct Library {
  unsigned abi;
  unsigned family;  // the oldest Apple GPU family that has all it uses
  const Kernel* kernels;
  unsigned kernel_count;
  const FunctionConstant* constants;
  unsigned constant_count;
  unsigned char* constant_values;
};

}  // namespace softmetal
