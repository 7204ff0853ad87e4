// Metal Performance Shaders, as far as npusim calls them: products of matrices on the host, and the
// rules that Apple's documentation and headers state for them.
#include <cstring>

#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::violation;

namespace {

constexpr unsigned kFloat32 = 0x10000000u | 32u, kFloat16 = 0x10000000u | 16u;  // MPSDataType

NSUInteger size_of(unsigned type) {
  return type == kFloat32 ? 4 : 2;
}

// A matrix of a batch where it lies.
struct Placed {
  softmetal::Bound at;
  NSUInteger rows, columns, matrices, row_bytes, matrix_bytes;
  unsigned type;

  unsigned char* element(NSUInteger matrix, NSUInteger row, NSUInteger column) const {
    return at.memory->data() + at.offset + matrix * matrix_bytes + row * row_bytes +
           column * size_of(type);
  }
  float get(NSUInteger matrix, NSUInteger row, NSUInteger column) const {
    const unsigned char* from = element(matrix, row, column);
    float wide;
    _Float16 half;
    if (type == kFloat32) return std::memcpy(&wide, from, 4), wide;
    std::memcpy(&half, from, 2);
    return static_cast<float>(half);
  }
  void set(NSUInteger matrix, NSUInteger row, NSUInteger column, float value) const {
    unsigned char* to = element(matrix, row, column);
    const auto half = static_cast<_Float16>(value);
    if (type == kFloat32) {
      std::memcpy(to, &value, 4);
    } else {
      std::memcpy(to, &half, 2);
    }
  }
};

}  // namespace

SOFTMETAL_EXPORT bool MPSSupportsMTLDevice(id device) {
  return device != nil && softmetal::settings().performance_shaders;
}

@interface MPSMatrixDescriptor : NSObject {
 @public
  NSUInteger rows_, columns_, matrices_, row_bytes_, matrix_bytes_;
  unsigned type_;
}
@end

@implementation MPSMatrixDescriptor
+ (id)matrixDescriptorWithRows:(NSUInteger)rows
                       columns:(NSUInteger)columns
                      matrices:(NSUInteger)matrices
                      rowBytes:(NSUInteger)row_bytes
                   matrixBytes:(NSUInteger)matrix_bytes
                      dataType:(unsigned)type {
  if (type != kFloat32 && type != kFloat16) violation("MPSMatrixDescriptor: the data type");
  if (rows == 0 || columns == 0 || matrices == 0) violation("MPSMatrixDescriptor: an empty matrix");
  if (row_bytes % size_of(type) != 0 || row_bytes < columns * size_of(type)) {
    violation("MPSMatrixDescriptor: rowBytes are no whole elements, or rows overlap");
  }
  if (matrix_bytes % row_bytes != 0 || (matrices > 1 && matrix_bytes < rows * row_bytes)) {
    violation("MPSMatrixDescriptor: matrixBytes are no whole rows, or matrices overlap");
  }
  MPSMatrixDescriptor* made = [[MPSMatrixDescriptor alloc] init];
  made->rows_ = rows;
  made->columns_ = columns;
  made->matrices_ = matrices;
  made->row_bytes_ = row_bytes;
  made->matrix_bytes_ = matrix_bytes;
  made->type_ = type;
  return [made autorelease];
}
@end

@interface MPSMatrix : NSObject {
 @public
  SoftMTLBuffer* buffer_;
  Placed* placed_;
}
@end

@implementation MPSMatrix
- (id)initWithBuffer:(SoftMTLBuffer*)buffer
              offset:(NSUInteger)offset
          descriptor:(MPSMatrixDescriptor*)given {
  if (buffer == nil || given == nil) violation("MPSMatrix: without a buffer or a descriptor");
  if (offset % size_of(given->type_) != 0) violation("MPSMatrix: the offset is no whole element");
  const NSUInteger bytes = given->matrices_ > 1 ? given->matrices_ * given->matrix_bytes_
                                                : given->rows_ * given->row_bytes_;
  if (offset > [buffer length] || bytes > [buffer length] - offset) {
    violation("MPSMatrix: bytes " + std::to_string(offset) + " to " +
              std::to_string(offset + bytes) + " of a buffer of " +
              std::to_string([buffer length]));
  }
  buffer_ = [buffer retain];
  placed_ = new Placed{softmetal::bound(buffer, offset), given->rows_,      given->columns_,
                       given->matrices_,                 given->row_bytes_, given->matrix_bytes_,
                       given->type_};
  return [super init];
}
- (void)dealloc {
  [buffer_ release];
  delete placed_;
  [super dealloc];
}
@end

@interface MPSMatrixMultiplication : NSObject {
 @public
  id device_;
  bool left_, right_;  // transposed
  NSUInteger rows_, columns_, interior_;
  double alpha_, beta_;
}
@end

@implementation MPSMatrixMultiplication
- (id)initWithDevice:(id)device
       transposeLeft:(bool)left
      transposeRight:(bool)right
          resultRows:(NSUInteger)rows
       resultColumns:(NSUInteger)columns
     interiorColumns:(NSUInteger)interior
               alpha:(double)alpha
                beta:(double)beta {
  if (!MPSSupportsMTLDevice(device)) violation("MPSMatrixMultiplication: the device has no MPS");
  device_ = [device retain];
  left_ = left;
  right_ = right;
  rows_ = rows;
  columns_ = columns;
  interior_ = interior;
  alpha_ = alpha;
  beta_ = beta;
  return [super init];
}
- (void)dealloc {
  [device_ release];
  [super dealloc];
}
- (void)encodeToCommandBuffer:(SoftMTLCommandBuffer*)commands
                   leftMatrix:(MPSMatrix*)left
                  rightMatrix:(MPSMatrix*)right
                 resultMatrix:(MPSMatrix*)result {
  [commands checkOpen:"MPSMatrixMultiplication"];
  if (left == nil || right == nil || result == nil) violation("MPSMatrixMultiplication: no matrix");
  if ([commands device] != device_ || [left->buffer_ device] != device_ ||
      [right->buffer_ device] != device_ || [result->buffer_ device] != device_) {
    violation("MPSMatrixMultiplication: objects of another device");
  }
  const Placed a = *left->placed_, b = *right->placed_, c = *result->placed_;
  const auto holds = [](const Placed& m, bool turned, NSUInteger rows, NSUInteger columns) {
    return (turned ? m.columns : m.rows) >= rows && (turned ? m.rows : m.columns) >= columns;
  };
  if (!holds(a, left_, rows_, interior_) || !holds(b, right_, interior_, columns_) ||
      !holds(c, false, rows_, columns_)) {
    violation("MPSMatrixMultiplication: a matrix is too small for the product");
  }
  if (a.type != b.type) violation("MPSMatrixMultiplication: matrices of two types");
  if (a.matrices != c.matrices || b.matrices != c.matrices) {
    violation("MPSMatrixMultiplication: batches of several sizes");
  }
  const auto product = [a, b, c, left = left_, right = right_, rows = rows_, columns = columns_,
                        interior = interior_, alpha = alpha_, beta = beta_] {
    for (NSUInteger i = 0; i < c.matrices; ++i) {
      for (NSUInteger row = 0; row < rows; ++row) {
        for (NSUInteger column = 0; column < columns; ++column) {
          float sum = 0;
          for (NSUInteger k = 0; k < interior; ++k) {
            sum += (left ? a.get(i, k, row) : a.get(i, row, k)) *
                   (right ? b.get(i, column, k) : b.get(i, k, column));
          }
          float value = static_cast<float>(alpha) * sum;
          if (beta != 0) value += static_cast<float>(beta) * c.get(i, row, column);
          c.set(i, row, column, value);
        }
      }
    }
    return softmetal::Failure{};
  };
  [commands add:{product}];
}
@end
