#include "cpp/cuda/cudnn_graph.h"

#include <algorithm>
#include <utility>

namespace npusim::cuda {
namespace {

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
  kTensor = 17,
};
enum Type : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
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
  kPadBehind = 104,
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
  kNumericalNotes = 1303,
  kBehaviorNotes = 1305,
};
enum DataType : int { kFloat32 = 0, kFloat16 = 2, kBfloat16 = 9 };
enum PointwiseMode : int { kAdd = 0, kRelu = 100 };
constexpr int kCrossCorrelation = 1;
constexpr int kModeA = 3;
enum NumericalNote : int {
  kTensorCore = 0,
  kNarrowedInputs = 1,
  kNarrowedSums = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
};
constexpr int kCompiles = 0;  // a behavior note
constexpr int64_t kMostConfigurations = 32, kMostNotes = 16;
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

CudnnDescriptor::CudnnDescriptor(const CudnnEntries& entries, int kind) : entries_(&entries) {
  if (entries.descriptor_create(kind, &handle_) != 0) handle_ = nullptr;
}

CudnnDescriptor::~CudnnDescriptor() {
  release();
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : entries_(other.entries_), handle_(std::exchange(other.handle_, nullptr)) {}

CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  if (this == &other) return *this;
  release();
  entries_ = other.entries_;
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

void CudnnDescriptor::release() noexcept {
  if (handle_ != nullptr) entries_->descriptor_destroy(handle_);
  handle_ = nullptr;
}

CudnnDescriptor& CudnnDescriptor::set(int attribute, int type, int64_t count, const void* values) {
  if (ok() && entries_->descriptor_set(handle_, attribute, type, count, values) != 0) release();
  return *this;
}

CudnnDescriptor& CudnnDescriptor::set(int attribute, const CudnnDescriptor& other) {
  const CudnnEntries::Descriptor handle = other.get();
  if (handle == nullptr) release();
  return set(attribute, kDescriptor, 1, &handle);
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  if (ok() && entries_->descriptor_finalize(handle_) != 0) release();
  return *this;
}

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
      .set(kPadBehind, kInt64, 2, c.pad_behind)
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

std::vector<CudnnDescriptor> CudnnGraph::configurations() const {
  CudnnDescriptor heuristics(entries_, kHeuristics);
  heuristics.set(kHeuristicsGraph, graph_)
      .set(kHeuristicsMode, kHeuristicMode, 1, &kModeA)
      .finalize();
  std::vector<CudnnDescriptor> found;
  std::vector<CudnnEntries::Descriptor> handles;
  for (int64_t i = 0; i < kMostConfigurations; ++i) {
    handles.push_back(found.emplace_back(entries_, kConfiguration).get());
  }
  int64_t count = 0;
  const bool whole = std::find(handles.begin(), handles.end(), nullptr) == handles.end();
  if (!whole || !heuristics.ok() ||
      entries_.descriptor_get(heuristics.get(), kHeuristicsResults, kDescriptor,
                              kMostConfigurations, &count, handles.data()) != 0) {
    count = 0;
  }
  found.resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, kMostConfigurations)));
  return found;
}

bool CudnnGraph::has_note(CudnnEntries::Descriptor engine, int attribute, int type,
                          std::initializer_list<int> notes) const {
  int found[kMostNotes] = {};
  int64_t count = 0;
  if (entries_.descriptor_get(engine, attribute, type, kMostNotes, &count, found) != 0) return true;
  int* const end = found + std::clamp<int64_t>(count, 0, kMostNotes);
  return std::any_of(notes.begin(), notes.end(),
                     [&](int note) { return std::find(found, end, note) != end; });
}

// Sums in float32 that come out the same every time; of float32 no TF32; nothing to be compiled.
bool CudnnGraph::is_usable(CudnnEntries::Descriptor configuration) const {
  const CudnnDescriptor engine(entries_, kEngine);
  CudnnEntries::Descriptor handle = engine.get();
  int64_t count = 0;
  if (handle == nullptr || entries_.descriptor_get(configuration, kConfigurationEngine, kDescriptor,
                                                   1, &count, &handle) != 0) {
    return false;
  }
  const bool narrow =
      has_note(handle, kNumericalNotes, kNumericalNote,
               {kNarrowedInputs, kNarrowedSums, kFft, kNondeterministic, kWinograd});
  const bool tf32 = problem_.type == LibraryType::kFloat32 &&
                    has_note(handle, kNumericalNotes, kNumericalNote, {kTensorCore});
  return !narrow && !tf32 && !has_note(handle, kBehaviorNotes, kBehaviorNote, {kCompiles});
}

CudnnPlan CudnnGraph::plan(int64_t index) const {
  if (!ok()) return {};
  const CudnnEntries::Handle handle = cudnn_.handle();
  for (CudnnDescriptor& configuration : configurations()) {
    if (!is_usable(configuration.get())) continue;
    CudnnDescriptor plan(entries_, kPlan);
    plan.set(kPlanHandle, kHandle, 1, &handle).set(kPlanConfiguration, configuration).finalize();
    if (plan.ok() && index-- == 0) return {std::move(configuration), std::move(plan)};
  }
  return {};
}

std::optional<int64_t> workspace_of(const CudnnEntries& entries, const CudnnDescriptor& plan) {
  int64_t bytes = 0, count = 0;
  const auto status = entries.descriptor_get(plan.get(), kPlanWorkspace, kInt64, 1, &count, &bytes);
  if (status != 0 || bytes < 0) return std::nullopt;
  return bytes;
}

}  // namespace npusim::cuda
