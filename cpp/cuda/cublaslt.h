// cuBLASLt, NVIDIA's library of matrix products, where it is found. Types and numbers are those of
// its public ABI, as far as npusim uses them; versions 12 and 13 have the same.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/cuda/context.h"
#include "cpp/cuda/library_call.h"
#include "cpp/device_code/library_problem.h"

namespace npusim::cuda {

struct CublasLtEntries {
  using Status = int;
  using Handle = struct cublasLtContext*;
  using Product = struct cublasLtMatmulDescOpaque_t*;
  using Layout = struct cublasLtMatrixLayoutOpaque_t*;
  using Preference = struct cublasLtMatmulPreferenceOpaque_t*;
  struct Algorithm {
    uint64_t data[8];
  };
  struct Heuristic {
    Algorithm algorithm;
    size_t workspace;
    Status state;
    float waves;
    int reserved[4];
  };

  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  size_t (*get_version)();
  Status (*product_create)(Product*, int compute_type, int scale_type);
  Status (*product_destroy)(Product);
  Status (*product_set)(Product, int attribute, const void*, size_t);
  Status (*layout_create)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t stride);
  Status (*layout_destroy)(Layout);
  Status (*layout_set)(Layout, int attribute, const void*, size_t);
  Status (*preference_create)(Preference*);
  Status (*preference_destroy)(Preference);
  Status (*preference_set)(Preference, int attribute, const void*, size_t);
  Status (*heuristics)(Handle, Product, Layout a, Layout b, Layout c, Layout d, Preference,
                       int wanted, Heuristic*, int* found);
  Status (*matmul)(Handle, Product, const void* alpha, const void* a, Layout, const void* b, Layout,
                   const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                   void* workspace, size_t, StreamHandle);
};

// The library's entry points, found without a device.
class CublasLtLibrary {
 public:
  // `driver_version` is 13000 for CUDA 13.0: a library for a newer major version is not taken.
  // Throws Error(kDevice) that says how to get it.
  CublasLtLibrary(std::span<const std::string> folders, int driver_version);

  const CublasLtEntries& entries() const noexcept { return entries_; }
  const std::string& path() const noexcept { return path_; }
  size_t version() const noexcept { return version_; }  // 130100
  std::string version_text() const;

 private:
  CublasLtEntries entries_{};
  std::string path_;
  size_t version_ = 0;
};

// The library on one device.
class CublasLt {
 public:
  // The context must be current. Throws Error(kDevice).
  CublasLt(std::shared_ptr<const Context> context, std::span<const std::string> folders);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  const Context& context() const noexcept { return *context_; }
  const CublasLtLibrary& library() const noexcept { return library_; }
  CublasLtEntries::Handle handle() const noexcept { return handle_; }

 private:
  std::shared_ptr<const Context> context_;
  CublasLtLibrary library_;
  CublasLtEntries::Handle handle_ = nullptr;
};

// Null where the library has no plan for a product.
std::unique_ptr<LibraryCall> make_call(std::shared_ptr<const CublasLt> cublaslt,
                                       const LibraryProblem& problem);

}  // namespace npusim::cuda
