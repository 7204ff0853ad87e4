// What an entry of linear_entry.h takes, over W of the type Weight in up to four segments, and
// where sums go.
#pragma once
#include "kernels/metal/common/four.h"
#include "kernels/metal/matmul/epilogue.h"
#include "kernels/metal/matmul/split.h"
#if NPUSIM_FEW
#include "kernels/metal/matmul/few_rows.h"
#else
#include "kernels/metal/matmul/tile.h"
#endif

namespace npusim {

typedef Storage<params.x_dtype> X;

// x, of a source, and the norm of its rows where there is one.
struct RowsOfX {
  struct Row {
    device const X* x;
    int64_t end;
  };
  device const X* x;
  device const X* norm;

  Row row(int64_t at) const {
    Row row;
    row.x = x + (at < params.m ? at * params.ldx : 0);
    row.end = at < params.m ? params.k : 0;
    return row;
  }
  static void four(Row row, int64_t k, thread Staged* to) { load_four(row.x + k, row.end - k, to); }
  void norm_of_four(int64_t k, thread Staged* to) const { load_four(norm + k, params.k - k, to); }
};

// Where sums of rows from `first_row` on and columns from `first_column` on go.
template <typename Source>
struct LinearOutput {
  Source source;
  Epilogue epilogue;
  int64_t first_row, first_column;

  void put_at(int64_t row, int64_t column, float first, float second) const {
    if (row >= params.m || column >= params.n) return;
    first *= source.scale(column);
    float v;
    if (kParts == 2) {
      v = epilogue.gated(first, second * source.scale(params.n + column), column, params.n);
    } else {
      v = epilogue.finished(first, row * params.ldr + column, column, 0);
    }
    epilogue.put(row * params.ldy + column, v);
  }
  void put(int row, int column, float first, float second) const {
    put_at(first_row + row, first_column + column, first, second);
  }
};

}  // namespace npusim

#if NPUSIM_SEGMENTS > 1
#define NPUSIM_W1 device const npusim::Weight *w1 [[buffer(2)]],
#else
#define NPUSIM_W1
#define w1 w0
#endif
#if NPUSIM_SEGMENTS > 2
#define NPUSIM_W2 device const npusim::Weight *w2 [[buffer(3)]],
#else
#define NPUSIM_W2
#define w2 w0
#endif
#if NPUSIM_SEGMENTS > 3
#define NPUSIM_W3 device const npusim::Weight *w3 [[buffer(4)]],
#else
#define NPUSIM_W3
#define w3 w0
#endif
#if NPUSIM_NORM
#define NPUSIM_NORM_OPERAND device const npusim::X *norm [[buffer(NPUSIM_NORM)]],
#define NPUSIM_NORM_POINTER norm
#else
#define NPUSIM_NORM_OPERAND
#define NPUSIM_NORM_POINTER nullptr
#endif
#define NPUSIM_LINEAR_OPERANDS                                                            \
  device const npusim::X *x [[buffer(0)]], device const npusim::Weight *w0 [[buffer(1)]], \
      NPUSIM_W1 NPUSIM_W2 NPUSIM_W3 NPUSIM_NORM_OPERAND NPUSIM_PARTIAL_OPERAND            \
          NPUSIM_EPILOGUE_OPERANDS uint group [[threadgroup_position_in_grid]],           \
      uint t [[thread_position_in_threadgroup]]
