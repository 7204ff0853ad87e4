// What cpp/metal takes of Metal Performance Shaders, in the words of Apple's documentation.
#pragma once

typedef unsigned long NSUInteger;
typedef bool BOOL;

@protocol MTLDevice;
@protocol MTLBuffer;
@protocol MTLCommandBuffer;

typedef enum MPSDataType : unsigned int {
  MPSDataTypeFloatBit = 0x10000000,
  MPSDataTypeFloat32 = MPSDataTypeFloatBit | 32,
  MPSDataTypeFloat16 = MPSDataTypeFloatBit | 16,
} MPSDataType;

#ifndef SOFTMETAL_FOUNDATION
__attribute__((objc_root_class))
@interface NSObject
+ (id)alloc;
- (id)init;
- (id)retain;
- (void)release;
@end
#endif

extern "C" BOOL MPSSupportsMTLDevice(id<MTLDevice> device);

@interface MPSMatrixDescriptor : NSObject
+ (id)matrixDescriptorWithRows:(NSUInteger)rows
                       columns:(NSUInteger)columns
                      matrices:(NSUInteger)matrices
                      rowBytes:(NSUInteger)rowBytes
                   matrixBytes:(NSUInteger)matrixBytes
                      dataType:(MPSDataType)dataType;
@end

@interface MPSMatrix : NSObject
- (id)initWithBuffer:(id<MTLBuffer>)buffer
              offset:(NSUInteger)offset
          descriptor:(MPSMatrixDescriptor*)descriptor;
@end

@interface MPSMatrixMultiplication : NSObject
- (id)initWithDevice:(id<MTLDevice>)device
       transposeLeft:(BOOL)transposeLeft
      transposeRight:(BOOL)transposeRight
          resultRows:(NSUInteger)resultRows
       resultColumns:(NSUInteger)resultColumns
     interiorColumns:(NSUInteger)interiorColumns
               alpha:(double)alpha
                beta:(double)beta;
- (void)encodeToCommandBuffer:(id<MTLCommandBuffer>)commandBuffer
                   leftMatrix:(MPSMatrix*)leftMatrix
                  rightMatrix:(MPSMatrix*)rightMatrix
                 resultMatrix:(MPSMatrix*)resultMatrix;
@end
