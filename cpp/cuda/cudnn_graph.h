// A convolution and what follows it as a graph of operations for cuDNN, and the plans the library
// has for it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpp/cuda/cudnn.h"

namespace npusim::cuda {

// A descriptor; empty when the library refused something about it.
class CudnnDescriptor {
 public:
  CudnnDescriptor() = default;
  CudnnDescriptor(const CudnnEntries& entries, int kind);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;

  bool ok() const noexcept { return handle_ != nullptr; }
  CudnnEntries::Descriptor get() const noexcept { return handle_; }

  CudnnDescriptor& set(int attribute, int type, int64_t count, const void* values);
  CudnnDescriptor& set(int attribute, const CudnnDescriptor& other);
  CudnnDescriptor& finalize();

 private:
  void release() noexcept;

  const CudnnEntries* entries_ = nullptr;
  CudnnEntries::Descriptor handle_ = nullptr;
};

// Names of the tensors, by which a run gives their addresses.
enum CudnnTensor : int64_t { kTensorX = 1, kTensorW, kTensorY, kTensorBias, kTensorResidual };

// A plan, and the configuration it was made of.
struct CudnnPlan {
  CudnnDescriptor configuration, plan;
};

// What a plan was made of lives as long as the plan does.
class CudnnGraph {
 public:
  CudnnGraph(const Cudnn& cudnn, LibraryProblem problem);

  bool ok() const noexcept { return graph_.ok(); }
  // Of the plans that compute in the problem's own precision without compiling anything, the one
  // the library thinks best first, the one of an index; empty when there are not so many.
  CudnnPlan plan(int64_t index) const;

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
  std::vector<CudnnDescriptor> configurations() const;
  bool is_usable(CudnnEntries::Descriptor configuration) const;
  bool has_note(CudnnEntries::Descriptor engine, int attribute, int type,
                std::initializer_list<int> notes) const;

  const Cudnn& cudnn_;
  const CudnnEntries& entries_;
  LibraryProblem problem_;
  const LibraryConvolution& convolution_;  // of problem_
  int64_t virtual_name_ = 100;
  std::vector<std::unique_ptr<CudnnDescriptor>> parts_;  // tensors and what operations refer to
  std::vector<CudnnEntries::Descriptor> operations_;
  CudnnDescriptor graph_;
};

// Bytes of memory that a plan works in.
std::optional<int64_t> workspace_of(const CudnnEntries& entries, const CudnnDescriptor& plan);

}  // namespace npusim::cuda
