// The memory that a program declares, known from its file before any of it is allocated.
#pragma once

#include <cstdint>
#include <memory>

#include "cpp/runtime/device.h"
#include "cpp/runtime/program.h"

namespace npusim {

// Bytes at the greatest sizes. A small file can declare any number of them.
struct DeclaredMemory {
  int64_t weights = 0;    // kWeight buffers: tensors of the checkpoint, mapped or copied
  int64_t prepared = 0;   // kPersistent buffers: what init makes of them
  int64_t constants = 0;  // they lie in the file
  int64_t state = 0;      // of one session
  int64_t arena = 0;      // kTemp buffers, of the method with the most, init included
  int64_t arguments = 0;  // inputs and outputs, of the method with the most

  int64_t total() const;  // INT64_MAX where they are more than that
};

DeclaredMemory declared_memory(const Program& program);

// Returns the device. Throws Error(kLimit) when the program declares more memory than the device
// was opened for (its option max_memory): what allocates for a program begins with this.
std::shared_ptr<Device> admit(std::shared_ptr<Device> device, const Program& program);

}  // namespace npusim
