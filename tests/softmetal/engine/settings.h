// What tests choose about the device: by environment variables SOFTMETAL_<NAME> when the library
// is loaded, and by softmetal_set(name, value) later.
#pragma once

#include <cstdint>
#include <string>

namespace softmetal {

// Of threads, threadgroups, and dispatches that no barrier parts. In the first three all SIMD
// groups of a threadgroup go on alike, from one SIMD operation to the next; in an eager one each
// runs alone up to a threadgroup barrier, the first SIMD group ahead of all others, or the last.
enum class Order { kForward, kReverse, kShuffle, kEager, kEagerReverse };

struct Settings {
  Order order = Order::kForward;
  std::uint64_t seed = 1;  // of shuffles
  std::string name = "Software Metal device";
  int family = 9;                                  // MTLGPUFamilyApple<n>
  std::string os = "Version 15.0 (Build 24A335)";  // as NSProcessInfo says
  int max_threads = 1024;                          // a threadgroup's
  int threadgroup_memory = 32 * 1024;              // bytes
  std::int64_t max_buffer = 1LL << 32;             // bytes
  std::int64_t max_memory = 1LL << 34;             // bytes of all buffers
  int buffer_alignment = 64;        // of contents: the rest of it lies behind the last byte
  int constant_alignment = 4;       // of offsets of constant buffers
  int matrix_layout = 0;            // of simdgroup matrices: 0 or 1
  int indirect_commands = 1 << 20;  // of a buffer; 0: neither buffers nor pipelines for them
  int performance_shaders = 1;      // 0: the device has none (MPS)
  int delay_us = 0;                 // between commit and execution
  double timeout_s = 120;           // of one dispatch, or of a wait for an event
  std::string cache;                // folder of compiled libraries
  bool fatal_leaks = false;         // objects alive at exit make its status 87
};

Settings& settings();
// Returns whether the name is known and the value one of its kind.
bool set(const std::string& name, const std::string& value);

// The host broke a rule of the API: prints it and ends the process with status 86.
[[noreturn]] void violation(const std::string& message);

}  // namespace softmetal
