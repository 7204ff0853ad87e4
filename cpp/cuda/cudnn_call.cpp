// A convolution by cuDNN: the plan is made once, each run names the addresses.
#include "cpp/cuda/cudnn_graph.h"
#include "cpp/cuda/cudnn_plan.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

using namespace cudnn_abi;

constexpr int64_t kMostWorkspace = int64_t{256} << 20;

class CudnnCall final : public LibraryCall {
 public:
  CudnnCall(std::shared_ptr<const Cudnn> cudnn, const LibraryProblem& problem)
      : cudnn_(std::move(cudnn)), convolution_(problem.convolution), graph_(*cudnn_, problem) {
    if (static_cast<size_t>(problem.version) == cudnn_->library().version()) index_ = problem.plan;
    plan_ = find_plan(*cudnn_, graph_.get(), problem.type, index_);
    if (plan_.plan.ok()) workspace_ = workspace_of(cudnn_->library().entries(), plan_.plan);
  }

  bool ok() const { return workspace_ && *workspace_ <= kMostWorkspace; }

  int64_t scratch() const noexcept override { return *workspace_; }
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
    pack.set(kPackNames, kInt64, count, names.data())
        .set(kPackAddresses, kPointer, count, addresses.data())
        .set(kPackWorkspace, kPointer, 1, &workspace)
        .finalize();
    const auto status = pack.ok() ? cudnn_->execute(plan_.plan.get(), pack.get(), stream) : 1;
    if (status == 0) return;
    throw Error(ErrorCode::kDevice,
                "cuDNN could not compute a convolution: status " + std::to_string(status));
  }

 private:
  std::shared_ptr<const Cudnn> cudnn_;
  LibraryConvolution convolution_;
  CudnnGraph graph_;
  int64_t index_ = 0;
  CudnnPlan plan_;
  std::optional<int64_t> workspace_;  // none: there is no plan
};

}  // namespace

std::unique_ptr<LibraryCall> make_call(std::shared_ptr<const Cudnn> cudnn,
                                       const LibraryProblem& problem) {
  auto call = std::make_unique<CudnnCall>(std::move(cudnn), problem);
  if (!call->ok()) return nullptr;
  return call;
}

}  // namespace npusim::cuda
