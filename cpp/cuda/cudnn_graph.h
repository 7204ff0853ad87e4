// A convolution and what follows it as a graph of operations for cuDNN.
#pragma once

#include <memory>
#include <vector>

#include "cpp/cuda/cudnn_descriptor.h"

namespace npusim::cuda {

// Names of the tensors, by which a run gives their addresses.
enum CudnnTensor : int64_t { kTensorX = 1, kTensorW, kTensorY, kTensorBias, kTensorResidual };

// What a plan was made of lives as long as the plan does.
class CudnnGraph {
 public:
  CudnnGraph(const Cudnn& cudnn, LibraryProblem problem);

  bool ok() const noexcept { return graph_.ok(); }
  const CudnnDescriptor& get() const noexcept { return graph_; }

 private:
  const CudnnDescriptor& tensor(int64_t name, const LibraryImage& image, int64_t channels,
                                const int64_t (&size)[2]);
  const CudnnDescriptor& weights();
  const CudnnDescriptor& bias();
  const CudnnDescriptor& between();
  const CudnnDescriptor& dense(int64_t name, int type, const int64_t (&dims)[4],
                               const int64_t (&strides)[4], bool is_virtual);
  void convolve(const CudnnDescriptor& x, const CudnnDescriptor& w, const CudnnDescriptor& y);
  void combine(int mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
               const CudnnDescriptor& y);

  const Cudnn& cudnn_;
  const CudnnEntries& entries_;
  LibraryProblem problem_;
  const LibraryConvolution& convolution_;  // of problem_
  int64_t virtual_name_ = 100;
  std::vector<std::unique_ptr<CudnnDescriptor>> parts_;  // tensors and what operations refer to
  std::vector<CudnnEntries::Descriptor> operations_;
  CudnnDescriptor graph_;
};

}  // namespace npusim::cuda
