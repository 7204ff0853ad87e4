// A descriptor of cuDNN's graph interface, and the numbers that name kinds, types and attributes in
// its public ABI.
#pragma once

#include "cpp/cuda/cudnn.h"

namespace npusim::cuda {

namespace cudnn_abi {

enum Kind : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kConfiguration = 3,
  kHeuristics = 4,
  kPlan = 5,
  kConvolutionForward = 10,
  kPointwiseOperation = 13,
  kOperations = 15,
  kVariantPack = 16,
  kTensor = 17,
};
enum Type : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kBehaviorNote = 19,
};
enum Attribute : int {
  kMode = 0,
  kPrecision = 1,
  kComputeType = 100,
  kMirror = 101,
  kDilations = 102,
  kStrides = 103,
  kPadAfter = 104,
  kPadBefore = 105,
  kDimensions = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigurationEngine = 300,
  kPlanHandle = 400,
  kPlanConfiguration = 401,
  kPlanWorkspace = 402,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardW = 703,
  kForwardX = 704,
  kForwardY = 705,
  kOperationPointwise = 750,
  kOperationX = 751,
  kOperationB = 752,
  kOperationY = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDims = 902,
  kTensorStrides = 903,
  kTensorName = 906,
  kTensorVirtual = 907,
  kPackNames = 1000,
  kPackAddresses = 1001,
  kPackWorkspace = 1003,
  kNumericalNotes = 1303,
  kBehaviorNotes = 1305,
};

}  // namespace cudnn_abi

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

}  // namespace npusim::cuda
