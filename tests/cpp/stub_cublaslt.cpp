// cuBLASLt without a GPU, for tests: products of float32 by three loops, over the stub driver. It
// has two plans for every product; none for one of 13 columns. STUB_CUBLASLT_VERSION is its
// version.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tests/cpp/stub_library.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using npusim::tests::host_floats;

constexpr int kInvalid = 7, kPlans = 2;

struct Product {
  int transpose_a = 0, epilogue = 1;
  const void* bias = nullptr;
};
struct Layout {
  uint64_t rows, columns;
  int64_t stride;
  int32_t batch = 1;
  int64_t batch_stride = 0;
};
struct Heuristic {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

template <typename T>
int set(T& to, const void* value, size_t size) {
  if (size != sizeof to) return kInvalid;
  std::memcpy(&to, value, size);
  return 0;
}

float activated(float x, int epilogue) {
  return (epilogue & 2) != 0 ? std::max(x, 0.0F) : x;
}

}  // namespace

EXPORT int cublasLtCreate(void** handle) {
  *handle = new int(0);
  return 0;
}
EXPORT int cublasLtDestroy(void* handle) {
  delete static_cast<int*>(handle);
  return 0;
}
EXPORT size_t cublasLtGetVersion() {
  return static_cast<size_t>(npusim::tests::environment_number("STUB_CUBLASLT_VERSION", 130100));
}
EXPORT int cublasLtMatmulDescCreate(Product** product, int compute, int scale) {
  if (compute != 68 || scale != 0) return kInvalid;
  *product = new Product;
  return 0;
}
EXPORT int cublasLtMatmulDescDestroy(Product* product) {
  delete product;
  return 0;
}
EXPORT int cublasLtMatmulDescSetAttribute(Product* product, int attribute, const void* value,
                                          size_t size) {
  if (attribute == 3) return set(product->transpose_a, value, size);
  if (attribute == 7) return set(product->epilogue, value, size);
  return attribute == 8 ? set(product->bias, value, size) : kInvalid;
}
EXPORT int cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns,
                                      int64_t stride) {
  if (type != 0 || stride < static_cast<int64_t>(rows)) return kInvalid;
  *layout = new Layout{rows, columns, stride};
  return 0;
}
EXPORT int cublasLtMatrixLayoutDestroy(Layout* layout) {
  delete layout;
  return 0;
}
EXPORT int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value,
                                            size_t size) {
  if (attribute == 5) return set(layout->batch, value, size);
  return attribute == 6 ? set(layout->batch_stride, value, size) : kInvalid;
}
EXPORT int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new int(0);
  return 0;
}
EXPORT int cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<int*>(preference);
  return 0;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, size_t) {
  return 0;
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, const Product*, const Layout*, const Layout*,
                                          const Layout*, const Layout* d, void*, int wanted,
                                          Heuristic* found, int* count) {
  constexpr uint64_t kUnknownRows = 13;
  *count = d->rows == kUnknownRows ? 0 : std::min(wanted, kPlans);
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].algorithm[0] = static_cast<uint64_t>(i);
    found[i].workspace = i == 0 ? 64 : 0;
  }
  return 0;
}
EXPORT int cublasLtMatmul(void*, const Product* product, const float* alpha, const void* a,
                          const Layout* a_layout, const void* b, const Layout* b_layout,
                          const float* beta, const void* c, const Layout* c_layout, void* d,
                          const Layout* d_layout, const Heuristic*, void* workspace,
                          size_t workspace_size, void*) {
  if (workspace_size > 0 && workspace == nullptr) return kInvalid;
  npusim::tests::enqueue([=, p = *product, al = *a_layout, bl = *b_layout, cl = *c_layout,
                          dl = *d_layout, alpha = *alpha, beta = *beta] {
    const uint64_t depth = p.transpose_a != 0 ? al.rows : al.columns;
    for (int64_t item = 0; item < dl.batch; ++item) {
      for (uint64_t i = 0; i < dl.rows * dl.columns; ++i) {
        const auto row = static_cast<int64_t>(i % dl.rows);
        const auto column = static_cast<int64_t>(i / dl.rows);
        float sum = 0;
        for (int64_t k = 0; k < static_cast<int64_t>(depth); ++k) {
          const int64_t at = p.transpose_a != 0 ? row * al.stride + k : k * al.stride + row;
          sum += host_floats(a)[item * al.batch_stride + at] *
                 host_floats(b)[item * bl.batch_stride + column * bl.stride + k];
        }
        sum *= alpha;
        if (beta != 0) {
          sum += beta * host_floats(c)[item * cl.batch_stride + column * cl.stride + row];
        }
        if ((p.epilogue & 4) != 0) sum += host_floats(p.bias)[row];
        host_floats(d)[item * dl.batch_stride + column * dl.stride + row] =
            activated(sum, p.epilogue);
      }
    }
  });
  return 0;
}
