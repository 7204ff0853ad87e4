#include "cpp/cuda/cudnn_graph.h"

#include <algorithm>
#include <utility>

namespace npusim::cuda {
namespace {

using namespace cudnn_abi;

enum DataType : int { kFloat32 = 0, kFloat16 = 2, kBfloat16 = 9 };
enum PointwiseMode : int { kAdd = 0, kRelu = 100 };
constexpr int kCrossCorrelation = 1;
constexpr int64_t kAlignment = 16;

int type_code(LibraryType type) {
  switch (type) {
    case LibraryType::kFloat16:
      return kFloat16;
    case LibraryType::kBfloat16:
      return kBfloat16;
    default:
      return kFloat32;
  }
}

}  // namespace

// conv -> [+ residual] -> [+ bias] -> [relu], the order the library knows. What lies between is
// float32 that never reaches memory.
CudnnGraph::CudnnGraph(const Cudnn& cudnn, LibraryProblem problem)
    : cudnn_(cudnn),
      entries_(cudnn.library().entries()),
      problem_(std::move(problem)),
      convolution_(problem_.convolution) {
  const LibraryConvolution& c = convolution_;
  const auto& x = tensor(kTensorX, c.x, c.channels, c.in_size);
  const auto& y = tensor(kTensorY, c.y, c.out_channels, c.out_size);
  const bool relu = problem_.activation == LibraryActivation::kRelu;
  int behind = (c.residual ? 1 : 0) + (c.bias ? 1 : 0) + (relu ? 1 : 0);  // operations to come
  const auto result = [&]() -> const CudnnDescriptor& { return behind-- == 0 ? y : between(); };
  const CudnnDescriptor* last = &result();
  convolve(x, weights(), *last);
  const auto then = [&](int mode, const CudnnDescriptor* b) {
    const CudnnDescriptor& next = result();
    combine(mode, *last, b, next);
    last = &next;
  };
  if (c.residual) then(kAdd, &tensor(kTensorResidual, *c.residual, c.out_channels, c.out_size));
  if (c.bias) then(kAdd, &bias());
  if (relu) then(kRelu, nullptr);
  if (problem_.activation == LibraryActivation::kGelu) return;
  if (std::find(operations_.begin(), operations_.end(), nullptr) != operations_.end()) return;
  const CudnnEntries::Handle handle = cudnn_.handle();
  graph_ = CudnnDescriptor(entries_, kOperations);
  graph_.set(kGraphHandle, kHandle, 1, &handle)
      .set(kGraphOperations, kDescriptor, static_cast<int64_t>(operations_.size()),
           operations_.data())
      .finalize();
}

const CudnnDescriptor& CudnnGraph::dense(int64_t name, int type, const int64_t (&dims)[4],
                                         const int64_t (&strides)[4], bool is_virtual) {
  auto& made = *parts_.emplace_back(std::make_unique<CudnnDescriptor>(entries_, kTensor));
  made.set(kTensorType, kDataType, 1, &type)
      .set(kTensorDims, kInt64, 4, dims)
      .set(kTensorStrides, kInt64, 4, strides)
      .set(kTensorName, kInt64, 1, &name)
      .set(kTensorAlignment, kInt64, 1, &kAlignment)
      .set(kTensorVirtual, kBoolean, 1, &is_virtual)
      .finalize();
  return made;
}

const CudnnDescriptor& CudnnGraph::tensor(int64_t name, const LibraryImage& image, int64_t channels,
                                          const int64_t (&size)[2]) {
  return dense(name, type_code(problem_.type), {convolution_.batch, channels, size[0], size[1]},
               {image.batch_stride, 1, image.row_stride, image.column_stride}, false);
}

const CudnnDescriptor& CudnnGraph::weights() {
  const LibraryConvolution& c = convolution_;
  const int64_t channels = c.channels / c.groups, row = channels * c.kernel[1];
  return dense(kTensorW, type_code(problem_.type),
               {c.out_channels, channels, c.kernel[0], c.kernel[1]},
               {row * c.kernel[0], 1, row, channels}, false);
}

const CudnnDescriptor& CudnnGraph::bias() {
  const int64_t n = convolution_.out_channels;
  return dense(kTensorBias, type_code(problem_.type), {1, n, 1, 1}, {n, 1, n, n}, false);
}

const CudnnDescriptor& CudnnGraph::between() {
  const LibraryConvolution& c = convolution_;
  const int64_t n = c.out_channels, row = n * c.out_size[1];
  return dense(virtual_name_++, kFloat32, {c.batch, n, c.out_size[0], c.out_size[1]},
               {row * c.out_size[0], 1, row, n}, true);
}

void CudnnGraph::convolve(const CudnnDescriptor& x, const CudnnDescriptor& w,
                          const CudnnDescriptor& y) {
  const LibraryConvolution& c = convolution_;
  const int compute = kFloat32;
  const int64_t dimensions = 2;
  const float alpha = 1, beta = 0;
  auto& how = *parts_.emplace_back(std::make_unique<CudnnDescriptor>(entries_, kConvolution));
  how.set(kDimensions, kInt64, 1, &dimensions)
      .set(kComputeType, kDataType, 1, &compute)
      .set(kMirror, kConvolutionMode, 1, &kCrossCorrelation)
      .set(kPadBefore, kInt64, 2, c.pad)
      .set(kPadAfter, kInt64, 2, c.pad_after)
      .set(kDilations, kInt64, 2, c.dilation)
      .set(kStrides, kInt64, 2, c.stride)
      .finalize();
  auto& forward =
      *parts_.emplace_back(std::make_unique<CudnnDescriptor>(entries_, kConvolutionForward));
  forward.set(kForwardX, x)
      .set(kForwardW, w)
      .set(kForwardY, y)
      .set(kForwardConvolution, how)
      .set(kForwardAlpha, kFloat, 1, &alpha)
      .set(kForwardBeta, kFloat, 1, &beta)
      .finalize();
  operations_.push_back(forward.get());
}

void CudnnGraph::combine(int mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
                         const CudnnDescriptor& y) {
  const int precision = kFloat32;
  auto& how = *parts_.emplace_back(std::make_unique<CudnnDescriptor>(entries_, kPointwise));
  how.set(kMode, kPointwiseMode, 1, &mode).set(kPrecision, kDataType, 1, &precision).finalize();
  auto& operation =
      *parts_.emplace_back(std::make_unique<CudnnDescriptor>(entries_, kPointwiseOperation));
  operation.set(kOperationPointwise, how).set(kOperationX, x);
  if (b != nullptr) operation.set(kOperationB, *b);
  operation.set(kOperationY, y).finalize();
  operations_.push_back(operation.get());
}

}  // namespace npusim::cuda
