// The matmul of one block of y over bfloat16 as it is stored, for the instruction set that has dot
// products of pairs: what matmul_cell.h does over floats, with two steps of K at a time. An
// element's pairs are added in the order of K, in blocks of kMatmulDepth, whatever the tiling.
#pragma once

#include "kernels/cpu/gemm_tile_bf16.h"
#include "kernels/cpu/matmul_cell.h"

namespace npusim::cpu::NPUSIM_ISA {

// How a block's operands become pairs along K, by strides and sizes alone.
struct PairMethod {
  bool a_in_place, a_rows, b_rows;  // rows that are contiguous: of a along K, of b along N
  bool y_in_place;
  bool any = false;  // otherwise a float GEMM is told to do it

  PairMethod(const abi::MatmulParams& p, int32_t y_dtype) {
    const bool bfloat = p.dtype == static_cast<int32_t>(abi::DType::kBfloat16);
    a_rows = p.a_k == 1;
    b_rows = p.b_n == 1;
    a_in_place = a_rows && p.k % 2 == 0 && p.k <= kMatmulDepth;
    y_in_place = y_dtype == 0 && p.alpha == 1 && p.n % kLanes == 0;
    any = bfloat && !MatmulMethod(p).dots && (a_rows || p.a_m == 1) && (b_rows || p.b_k == 1);
  }
};

// As interleave_rows, from columns along K: squares of pairs change their sides in registers.
inline void interleave_columns(const StridedBlock<bfloat16>& block, bfloat16* to,
                               int64_t to_columns) {
  for (int64_t c = 0; c < to_columns; c += kLanes) {
    const int64_t count = std::clamp<int64_t>(block.columns - c, 0, kLanes);
    for (int64_t r = 0; r < block.rows; r += kPairLanes) {
      Vec square[kLanes] = {};
      for (int64_t i = 0; i < count; ++i) {
        const bfloat16* from = block.at + (c + i) * block.column + r;
        square[i] = reinterpret_cast<Vec>(load_pair_lanes(from, block.rows - r));
      }
      transpose(square);
      bfloat16* at = to + r * to_columns + 2 * c;
      for (int64_t i = 0; i < kLanes; ++i) {
        store_pairs(at + 2 * i * to_columns, reinterpret_cast<BVec>(square[i]));
      }
    }
  }
}

class PairMatmul {
 public:
  PairMatmul(const MatmulOperands& operands, const abi::MatmulParams& p)
      : p_(p),
        method_(p, operands.y_dtype),
        operands_(operands),
        a_(static_cast<const bfloat16*>(operands.a)),
        b_(static_cast<const bfloat16*>(operands.b)) {
    bytes_ = lay_out(operands.scratch);
  }

  int64_t bytes() const { return bytes_; }  // of scratch

  void run(const MatmulCell& cell) const {
    Bf16Gemm product{.a = nullptr, .a_row = 0, .a_k = 2, .c = y_block_, .c_row = kMatmulColumns};
    if (method_.y_in_place) {
      product.c = static_cast<float*>(operands_.y) + cell.y;
      product.c_row = p_.y_m;
    }
    for (int64_t k = 0; k == 0 || k < p_.k; k += kMatmulDepth) {
      product.add = k > 0;
      multiply_depth(cell, k, std::min(kMatmulDepth, p_.k - k), product);
    }
    if (!method_.y_in_place) store_block(cell);
  }

 private:
  int64_t lay_out(void* base) {
    Arena arena(base);
    const int64_t rows = round_up(std::min(p_.m, kMatmulRows), kPairLanes);
    const int64_t depth = round_up(std::min(p_.k, kMatmulDepth), kPairLanes);
    a_block_ = arena.take<bfloat16>(method_.a_in_place ? 0 : rows * depth);
    b_block_ = arena.take<bfloat16>(kMatmulPanel * depth);
    y_block_ = arena.take<float>(method_.y_in_place ? 0 : rows * kMatmulColumns);
    return arena.bytes();
  }

  void multiply_depth(const MatmulCell& cell, int64_t k, int64_t depth, Bf16Gemm product) const {
    product.pairs = (depth + 1) / 2;
    take_a(cell, k, depth, &product);
    float* c = product.c;
    for (int64_t column = 0; column < cell.columns; column += kMatmulPanel) {
      const int64_t width = std::min(kMatmulPanel, cell.columns - column);
      const int64_t padded = round_up(width, kPairLanes);
      const bfloat16* b = b_ + cell.b + k * p_.b_k + column * p_.b_n;
      if (method_.b_rows) {
        interleave_rows({b, p_.b_k, 1, depth, width}, b_block_, padded);
      } else {
        interleave_columns({b, 1, p_.b_n, depth, width}, b_block_, padded);
      }
      product.b = b_block_;
      product.b_k = 2 * padded;
      product.c = c + column;
      multiply(product, cell.rows, (width + kLanes - 1) / kLanes);
    }
  }

  void take_a(const MatmulCell& cell, int64_t k, int64_t depth, Bf16Gemm* product) const {
    const bfloat16* a = a_ + cell.a + k * p_.a_k;
    product->a = a_block_;
    if (method_.a_in_place) {
      product->a = a;
      product->a_row = p_.a_m;
    } else if (method_.a_rows) {
      product->a_row = round_up(depth, kPairLanes);
      for (int64_t r = 0; r < cell.rows; ++r, a += p_.a_m) {
        bfloat16* to = a_block_ + r * product->a_row;
        for (int64_t i = 0; i < depth; i += kPairLanes) {
          store_pairs(to + i, load_pair_lanes(a + i, depth - i));
        }
      }
    } else {
      const int64_t padded = round_up(cell.rows, kPairLanes);
      interleave_rows({a, p_.a_k, 1, depth, cell.rows}, a_block_, padded);
      product->a_row = 2;
      product->a_k = 2 * padded;
    }
  }

  void store_block(const MatmulCell& cell) const {
    for (int64_t r = 0; r < cell.rows; ++r) {
      for (int64_t c = 0; c < cell.columns; c += kLanes) {
        const Vec y = load(y_block_ + r * kMatmulColumns + c) * p_.alpha;
        store_as(operands_.y_dtype, operands_.y, cell.y + r * p_.y_m + c, y, cell.columns - c);
      }
    }
  }

  const abi::MatmulParams& p_;
  const PairMethod method_;
  const MatmulOperands operands_;
  const bfloat16 *const a_, *const b_;
  bfloat16 *a_block_, *b_block_;
  float* y_block_;
  int64_t bytes_;
};

}  // namespace npusim::cpu::NPUSIM_ISA
