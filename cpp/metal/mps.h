// Products that Metal Performance Shaders (MPS) computes, in command buffers of ours. metal-cpp
// does not wrap MPS, so this is Objective-C++ behind a face of plain C++: Metal's objects are
// passed by their address, as metal-cpp's pointers are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cpp/device_code/library_problem.h"

namespace npusim::metal {

// Whether a device (MTL::Device) computes with MPS.
bool has_mps(const void* device);

class MpsProducts {
 public:
  // Where an operand begins: a buffer (MTL::Buffer), its length, and the operand's offset.
  struct Place {
    const void* buffer;
    uint64_t length, offset;
  };

  // Of a problem for MPS. Throws Error(kFormat), beginning with `what`: products have more than MPS
  // computes, or matrices do not lie as it takes them.
  MpsProducts(const void* device, const LibraryProblem& problem, const std::string& what);
  ~MpsProducts();

  // Whether the memory takes whole rows of all matrices: MPS wants the last one whole as well.
  bool fits(std::span<const Place> operands) const;
  // Encodes all products into a command buffer (MTL::CommandBuffer) without an open encoder; MPS
  // opens its own. The operands have to fit.
  void encode(const void* command_buffer, std::span<const Place> operands) const;

 private:
  struct Product;
  std::unique_ptr<const Product[]> products_;
  size_t count_;
};

}  // namespace npusim::metal
