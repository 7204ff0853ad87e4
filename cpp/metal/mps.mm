// Objects are counted by hand: what is made here is released here, and the caller has a pool.
#import <MetalPerformanceShaders/MetalPerformanceShaders.h>

#include "cpp/metal/mps.h"
#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

// A matrix as MPS takes it, in bytes.
struct Matrix {
  size_t operand;
  uint64_t first, bytes;  // of all of it, whole rows
  MPSMatrixDescriptor* descriptor;
};

MPSDataType type_of(LibraryType type) {
  return type == LibraryType::kFloat32 ? MPSDataTypeFloat32 : MPSDataTypeFloat16;
}

Matrix matrix_of(const LibraryMatrix& given, int64_t rows, int64_t columns, int64_t count,
                 LibraryType type, const std::string& what) {
  const int64_t size = size_of(type);
  const int64_t row = rows == 1 ? columns : given.row_stride;
  const int64_t matrix = count == 1 ? rows * row : given.batch_stride;
  if (matrix < rows * row || matrix % row != 0) {
    throw Error(ErrorCode::kFormat, what + ": matrices of a batch do not lie as MPS takes them");
  }
  MPSMatrixDescriptor* const descriptor =
      [MPSMatrixDescriptor matrixDescriptorWithRows:static_cast<NSUInteger>(rows)
                                            columns:static_cast<NSUInteger>(columns)
                                           matrices:static_cast<NSUInteger>(count)
                                           rowBytes:static_cast<NSUInteger>(row * size)
                                        matrixBytes:static_cast<NSUInteger>(matrix * size)
                                           dataType:type_of(type)];
  return {static_cast<size_t>(given.operand), static_cast<uint64_t>(given.first * size),
          static_cast<uint64_t>(count * matrix * size), [descriptor retain]};
}

bool fits(const Matrix& matrix, std::span<const MpsProducts::Place> operands) {
  const MpsProducts::Place& place = operands[matrix.operand];
  const uint64_t begin = place.offset + matrix.first;
  return begin <= place.length && matrix.bytes <= place.length - begin;
}

// Retained.
MPSMatrix* show(const Matrix& matrix, std::span<const MpsProducts::Place> operands) {
  const MpsProducts::Place& place = operands[matrix.operand];
  return [[MPSMatrix alloc] initWithBuffer:static_cast<id<MTLBuffer>>(const_cast<void*>(place.buffer))
                                    offset:place.offset + matrix.first
                                descriptor:matrix.descriptor];
}

}  // namespace

struct MpsProducts::Product {
  Matrix x{}, w{}, y{};
  MPSMatrixMultiplication* kernel = nullptr;

  ~Product() {
    [x.descriptor release];
    [w.descriptor release];
    [y.descriptor release];
    [kernel release];
  }
};

bool has_mps(const void* device) {
  return MPSSupportsMTLDevice(static_cast<id<MTLDevice>>(const_cast<void*>(device)));
}

MpsProducts::MpsProducts(const void* device, const LibraryProblem& problem,
                         const std::string& what)
    : count_(problem.products.size()) {
  auto products = std::make_unique<Product[]>(count_);
  for (size_t i = 0; i < count_; ++i) {
    const LibraryMatmul& given = problem.products[i];
    if (given.bias || given.residual || problem.activation != LibraryActivation::kNone ||
        problem.type == LibraryType::kBfloat16) {
      throw Error(ErrorCode::kFormat, what + ": MPS computes products alone, of float32 or float16");
    }
    Product& product = products[i];
    const bool inside = given.columns_inside;
    product.x = matrix_of(given.x, given.m, given.k, given.batch, problem.type, what);
    product.w = matrix_of(given.w, inside ? given.k : given.n, inside ? given.n : given.k,
                          given.batch, problem.type, what);
    product.y = matrix_of(given.y, given.m, given.n, given.batch, problem.type, what);
    product.kernel = [[MPSMatrixMultiplication alloc]
        initWithDevice:static_cast<id<MTLDevice>>(const_cast<void*>(device))
         transposeLeft:false
        transposeRight:!inside
            resultRows:static_cast<NSUInteger>(given.m)
         resultColumns:static_cast<NSUInteger>(given.n)
       interiorColumns:static_cast<NSUInteger>(given.k)
                 alpha:1.0
                  beta:0.0];
    if (product.kernel == nullptr) throw Error(ErrorCode::kDevice, what + ": MPS makes no product");
  }
  products_ = std::move(products);
}

MpsProducts::~MpsProducts() = default;

bool MpsProducts::fits(std::span<const Place> operands) const {
  for (size_t i = 0; i < count_; ++i) {
    const Product& product = products_[i];
    for (const Matrix* matrix : {&product.x, &product.w, &product.y}) {
      if (!metal::fits(*matrix, operands)) return false;
    }
  }
  return true;
}

void MpsProducts::encode(const void* command_buffer, std::span<const Place> operands) const {
  for (size_t i = 0; i < count_; ++i) {
    const Product& product = products_[i];
    MPSMatrix* const x = show(product.x, operands);
    MPSMatrix* const w = show(product.w, operands);
    MPSMatrix* const y = show(product.y, operands);
    [product.kernel
        encodeToCommandBuffer:static_cast<id<MTLCommandBuffer>>(const_cast<void*>(command_buffer))
                   leftMatrix:x
                  rightMatrix:w
                 resultMatrix:y];
    [x release];
    [w release];
    [y release];
  }
}

}  // namespace npusim::metal
