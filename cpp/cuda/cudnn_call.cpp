// A convolution by cuDNN: the plan is made once, each run names the addresses.
#include "cpp/cuda/cudnn_graph.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

constexpr int kVariantPack = 16;
constexpr int kInt64 = 3, kPointer = 6;
enum PackAttribute : int { kNames = 1000, kAddresses = 1001, kWorkspace = 1003 };
constexpr int64_t kMostWorkspace = int64_t{256} << 20;

class CudnnCall final : public LibraryCall {
 public:
  CudnnCall(std::shared_ptr<const Cudnn> cudnn, const LibraryProblem& problem, int64_t index,
            CudnnDescriptor plan, int64_t workspace)
      : cudnn_(std::move(cudnn)),
        convolution_(problem.convolution),
        index_(index),
        plan_(std::move(plan)),
        workspace_(workspace) {}

  int64_t scratch() const noexcept override { return workspace_; }
  std::string description() const override {
    return "cudnn " + cudnn_->library().version_text() + ", plan " + std::to_string(index_);
  }

  void run(std::span<std::byte* const> operands, std::byte* scratch, StreamHandle stream) override {
    std::vector<int64_t> names;
    std::vector<void*> addresses;
    const auto add = [&](int64_t name, int64_t operand) {
      names.push_back(name);
      addresses.push_back(operands[static_cast<size_t>(operand)]);
    };
    add(kTensorX, convolution_.x.operand);
    add(kTensorW, convolution_.w);
    add(kTensorY, convolution_.y.operand);
    if (convolution_.bias) add(kTensorBias, *convolution_.bias);
    if (convolution_.residual) add(kTensorResidual, convolution_.residual->operand);
    const CudnnEntries& entries = cudnn_->library().entries();
    const auto count = static_cast<int64_t>(names.size());
    void* workspace = scratch;
    CudnnDescriptor pack(entries, kVariantPack);
    pack.set(kNames, kInt64, count, names.data())
        .set(kAddresses, kPointer, count, addresses.data())
        .set(kWorkspace, kPointer, 1, &workspace)
        .finalize();
    const auto status = pack.ok() ? cudnn_->execute(plan_.get(), pack.get(), stream) : 1;
    if (status == 0) return;
    throw Error(ErrorCode::kDevice,
                "cuDNN could not compute a convolution: status " + std::to_string(status));
  }

 private:
  std::shared_ptr<const Cudnn> cudnn_;
  LibraryConvolution convolution_;
  int64_t index_;
  CudnnDescriptor plan_;
  int64_t workspace_;
};

}  // namespace

std::unique_ptr<LibraryCall> make_call(std::shared_ptr<const Cudnn> cudnn,
                                       const LibraryProblem& problem) {
  const bool measured = static_cast<size_t>(problem.version) == cudnn->library().version();
  const int64_t index = measured ? problem.plan : 0;
  const CudnnGraph graph(*cudnn, problem);
  std::vector<CudnnDescriptor> plans = graph.plans(static_cast<size_t>(index), 1);
  if (plans.empty()) return nullptr;
  const auto workspace = workspace_of(cudnn->library().entries(), plans[0]);
  if (!workspace || *workspace > kMostWorkspace) return nullptr;
  return std::make_unique<CudnnCall>(std::move(cudnn), problem, index, std::move(plans[0]),
                                     *workspace);
}

}  // namespace npusim::cuda
