// The plans that cuDNN has for a graph, and which of them npusim takes.
#pragma once

#include <cstdint>
#include <optional>

#include "cpp/cuda/cudnn_descriptor.h"

namespace npusim::cuda {

// A plan, and the configuration it was made of.
struct CudnnPlan {
  CudnnDescriptor configuration, plan;
};

// Of the plans that compute in the type's own precision without compiling anything, the one the
// library thinks best first, the one of an index; empty when there are not so many.
CudnnPlan find_plan(const Cudnn& cudnn, const CudnnDescriptor& graph, LibraryType type,
                    int64_t index);

// Bytes of memory that a plan works in.
std::optional<int64_t> workspace_of(const CudnnEntries& entries, const CudnnDescriptor& plan);

}  // namespace npusim::cuda
