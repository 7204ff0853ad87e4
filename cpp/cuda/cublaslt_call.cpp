// Products by cuBLASLt: descriptions and plans are made once, each run names the addresses.
//
// The library thinks in columns. Rows of y[m, n] are columns of its D[n, m], so that A is W, B is x
// and the bias has an element a row of D.
#include <algorithm>
#include <numeric>

#include "cpp/cuda/cublaslt.h"
#include "cpp/runtime/error.h"

namespace npusim::cuda {
namespace {

using Entries = CublasLtEntries;

enum : int { kReal32 = 0, kReal16 = 2, kBrain16 = 14 };  // cudaDataType
constexpr int kComputeFloat32 = 68;                      // never TF32
enum ProductAttribute : int { kTransposeA = 3, kEpilogue = 7, kBias = 8 };
enum LayoutAttribute : int { kBatchCount = 5, kBatchStride = 6 };
enum PreferenceAttribute : int { kMostWorkspace = 1, kReductions = 3, kAlignmentOfA = 5 };
enum Epilogue : int { kPlain = 1, kRelu = 2, kPlusBias = 4, kGelu = 32 };
constexpr uint32_t kReduceInFloat32 = 2;

constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kMostPlans = 16;
constexpr int64_t kOperandAlignment = 16;
constexpr int64_t kMostBatch = int64_t{1} << 30;

int type_code(LibraryType type) {
  switch (type) {
    case LibraryType::kFloat16:
      return kReal16;
    case LibraryType::kBfloat16:
      return kBrain16;
    default:
      return kReal32;
  }
}

template <typename Descriptor>
using Owned = std::unique_ptr<std::remove_pointer_t<Descriptor>, Entries::Status (*)(Descriptor)>;

// A product that a plan was found for; ok() tells whether one was.
class PlannedMatmul {
 public:
  PlannedMatmul(const CublasLt& cublaslt, const LibraryProblem& problem,
                const LibraryMatmul& product)
      : entries_(cublaslt.library().entries()),
        product_(product),
        size_(size_of(problem.type)),
        description_(nullptr, entries_.product_destroy),
        w_(layout(problem, product.w, product.columns_inside ? product.n : product.k,
                  product.columns_inside ? product.k : product.n)),
        x_(layout(problem, product.x, product.k, product.m)),
        y_(layout(problem, product.y, product.n, product.m)),
        c_(layout(problem, product.residual.value_or(product.y), product.n, product.m)) {
    describe(problem.activation);
    if (ok_) plan(cublaslt, problem);
  }

  bool ok() const noexcept { return ok_; }
  size_t workspace() const noexcept { return plan_.workspace; }

  Entries::Status run(const CublasLt& cublaslt, std::span<std::byte* const> operands,
                      std::byte* scratch, StreamHandle stream) const {
    const auto at = [&](const LibraryMatrix& matrix) {
      return operands[static_cast<size_t>(matrix.operand)] + matrix.first * size_;
    };
    if (product_.bias) {
      const std::byte* bias = at(*product_.bias);
      const auto status = entries_.product_set(description_.get(), kBias, &bias, sizeof bias);
      if (status != 0) return status;
    }
    const float alpha = 1, beta = product_.residual ? 1 : 0;
    std::byte* y = at(product_.y);
    return entries_.matmul(cublaslt.handle(), description_.get(), &alpha, at(product_.w), w_.get(),
                           at(product_.x), x_.get(), &beta,
                           product_.residual ? at(*product_.residual) : y, c_.get(), y, y_.get(),
                           &plan_.algorithm, scratch, plan_.workspace, stream);
  }

 private:
  void need(Entries::Status status) { ok_ = ok_ && status == 0; }

  Owned<Entries::Layout> layout(const LibraryProblem& problem, const LibraryMatrix& matrix,
                                int64_t rows, int64_t columns) {
    Entries::Layout made = nullptr;
    need(entries_.layout_create(&made, type_code(problem.type), static_cast<uint64_t>(rows),
                                static_cast<uint64_t>(columns), std::max(matrix.row_stride, rows)));
    Owned<Entries::Layout> owned(made, entries_.layout_destroy);
    if (!ok_ || product_.batch == 1) return owned;
    const auto count = static_cast<int32_t>(std::min(product_.batch, kMostBatch));
    need(product_.batch <= kMostBatch ? 0 : 1);
    need(entries_.layout_set(made, kBatchCount, &count, sizeof count));
    need(entries_.layout_set(made, kBatchStride, &matrix.batch_stride, sizeof(int64_t)));
    return owned;
  }

  void describe(LibraryActivation activation) {
    Entries::Product made = nullptr;
    need(entries_.product_create(&made, kComputeFloat32, kReal32));
    description_.reset(made);
    if (!ok_) return;
    const int32_t transpose = product_.columns_inside ? 0 : 1;
    need(entries_.product_set(made, kTransposeA, &transpose, sizeof transpose));
    int32_t epilogue = activation == LibraryActivation::kRelu   ? kRelu
                       : activation == LibraryActivation::kGelu ? kGelu
                                                                : kPlain;
    if (product_.bias) {
      epilogue = epilogue == kPlain ? kPlusBias : epilogue | kPlusBias;
      const uintptr_t aligned = kOperandAlignment;  // the plan depends on it, nothing reads there
      need(entries_.product_set(made, kBias, &aligned, sizeof aligned));
    }
    need(entries_.product_set(made, kEpilogue, &epilogue, sizeof epilogue));
  }

  // Of the addresses of a matrix, whatever its operand is bound to.
  uint32_t alignment(const LibraryMatrix& matrix) const {
    return static_cast<uint32_t>(std::gcd(kOperandAlignment, matrix.first * size_));
  }

  void plan(const CublasLt& cublaslt, const LibraryProblem& problem) {
    Entries::Preference made = nullptr;
    need(entries_.preference_create(&made));
    const Owned<Entries::Preference> preference(made, entries_.preference_destroy);
    if (!ok_) return;
    need(entries_.preference_set(made, kMostWorkspace, &kWorkspace, sizeof kWorkspace));
    need(entries_.preference_set(made, kReductions, &kReduceInFloat32, sizeof kReduceInFloat32));
    const LibraryMatrix c = product_.residual.value_or(product_.y);
    int attribute = kAlignmentOfA;
    for (const LibraryMatrix& matrix : {product_.w, product_.x, c, product_.y}) {
      const uint32_t bytes = alignment(matrix);
      need(entries_.preference_set(made, attribute++, &bytes, sizeof bytes));
    }
    Entries::Heuristic found[kMostPlans] = {};
    int count = 0;
    const int64_t index =
        static_cast<size_t>(problem.version) == cublaslt.library().version() ? problem.plan : 0;
    ok_ = ok_ && index < kMostPlans;
    if (!ok_) return;
    need(entries_.heuristics(cublaslt.handle(), description_.get(), w_.get(), x_.get(), c_.get(),
                             y_.get(), made, static_cast<int>(index) + 1, found, &count));
    ok_ = ok_ && index < count && found[index].state == 0 && found[index].workspace <= kWorkspace;
    if (ok_) plan_ = found[index];
  }

  const Entries& entries_;
  LibraryMatmul product_;
  int64_t size_;
  bool ok_ = true;
  Owned<Entries::Product> description_;
  Owned<Entries::Layout> w_, x_, y_, c_;
  Entries::Heuristic plan_{};
};

class CublasLtCall final : public LibraryCall {
 public:
  CublasLtCall(std::shared_ptr<const CublasLt> cublaslt, const LibraryProblem& problem)
      : cublaslt_(std::move(cublaslt)), plan_(problem.plan) {
    if (static_cast<size_t>(problem.version) != cublaslt_->library().version()) plan_ = 0;
    for (const LibraryMatmul& product : problem.products) {
      products_.emplace_back(*cublaslt_, problem, product);
    }
  }

  bool ok() const {
    return std::all_of(products_.begin(), products_.end(), [](const auto& p) { return p.ok(); });
  }
  int64_t scratch() const noexcept override {
    size_t most = 0;
    for (const PlannedMatmul& product : products_) most = std::max(most, product.workspace());
    return static_cast<int64_t>(most);
  }
  std::string description() const override {
    return "cublaslt " + cublaslt_->library().version_text() + ", plan " + std::to_string(plan_);
  }
  void run(std::span<std::byte* const> operands, std::byte* scratch, StreamHandle stream) override {
    for (const PlannedMatmul& product : products_) {
      const Entries::Status status = product.run(*cublaslt_, operands, scratch, stream);
      if (status == 0) continue;
      throw Error(ErrorCode::kDevice,
                  "cuBLASLt could not compute a product: status " + std::to_string(status));
    }
  }

 private:
  std::shared_ptr<const CublasLt> cublaslt_;
  int64_t plan_;
  std::vector<PlannedMatmul> products_;
};

}  // namespace

std::unique_ptr<LibraryCall> make_call(std::shared_ptr<const CublasLt> cublaslt,
                                       const LibraryProblem& problem) {
  auto call = std::make_unique<CublasLtCall>(std::move(cublaslt), problem);
  if (!call->ok()) return nullptr;
  return call;
}

}  // namespace npusim::cuda
