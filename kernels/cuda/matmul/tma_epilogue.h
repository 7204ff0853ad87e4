// What becomes of the sums of a bulk tile: stored by the block that has them, or added up by the
// blocks of a cluster that cut K. Included where Sums, Share and the division of shared memory are
// known.
#pragma once

namespace npusim {

// Eight columns of a row of y, of which those before params.n exist: one store where they lie on 16
// bytes.
constexpr bool kWideRows = params.ldy % 8 == 0 && (!params.residual || params.ldr % 8 == 0);

struct Finish {
  static constexpr int kTiles = static_cast<int>(ceil_div(params.n, kBulkOutputs));
  static_assert(!kLeavesNorm || (kTiles <= kSlots && kParts == 1));
  EpilogueOfEight epilogue;
  Leaving leaving;
  const float* squares;  // of x

  explicit Finish(void* const* operands)
      : epilogue(Epilogue(operands, kWeights)),
        leaving(operands),
        squares(squares_of_rows(operands)) {
    epilogue.wide = epilogue.wide && kWideRows;
    if constexpr (kLeavesNorm) epilogue.wide = epilogue.wide && is_aligned(leaving.scaled, 16);
  }
  static int count(int row, int column) {
    return row < params.m ? static_cast<int>(smaller<int64_t>(params.n - column, 8)) : 0;
  }
  uint4 residual(int row, int column) const {
    return epilogue.residual(static_cast<int64_t>(row) * params.ldr + column, count(row, column));
  }
  void bias(int column, float (&b)[8]) const {
    epilogue.bias(column, static_cast<int>(smaller<int64_t>(params.n - column, 8)), b);
  }
  // The weights of the norm that y begins.
  uint4 norm(int column) const {
    const int exist = static_cast<int>(smaller<int64_t>(params.n - column, 8));
    if (!kLeavesNorm || exist <= 0) return {0, 0, 0, 0};
    if (exist >= 8) return *reinterpret_cast<const uint4*>(leaving.norm + column);
    return gather_chunk(leaving.norm + column, exist);
  }
  // Has what belongs to a tile's columns brought near while they are multiplied.
  void fetch_vectors(const Share& share) const {
    const int exist = smaller(kBulkOutputs, static_cast<int>(params.n) - share.first_column);
    if (params.n % 8 != 0 || exist <= 0 || !epilogue.wide) return;
    if constexpr (kLeavesNorm) prefetch_l2(leaving.norm + share.first_column, exist * 2);
    if constexpr (params.has_bias != 0) {
      prefetch_l2(epilogue.epilogue.bias + share.first_column, exist * 4);
    }
  }
  // Returns the sum of the squares of what is stored, for a norm that y begins.
  float store(int row, int column, const uint4& residual, const float (&bias)[8], const uint4& norm,
              const float (&sums)[8]) const {
    const int exist = count(row, column);
    if (exist <= 0) return 0.0f;
    float v[8];
    epilogue.results(static_cast<int64_t>(row) * params.ldr + column, exist, residual, bias, sums,
                     v);
    epilogue.store(static_cast<int64_t>(row) * params.ldy + column, exist, v);
    if constexpr (!kLeavesNorm) return 0.0f;
    unpack<Epilogue::Y>(pack_eight<Epilogue::Y>(v), v);
    return leaving.store(row, column, exist, epilogue.wide, v, norm);
  }
  void store_squares(const Share& share, int row, float sum) const {
    leaving.store_squares<kTiles>(row, share.first_column / kBulkOutputs, sum);
  }
  // The same of gated products, which have no residual.
  void store(int row, int column, const float (&first)[8], const float (&second)[8]) const {
    const int exist = count(row, column);
    if (exist <= 0) return;
    float b[8], more[8], v[8];
    bias(column, b);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      more[e] = params.has_bias && e < exist ? epilogue.epilogue.bias[params.n + column + e] : 0;
      v[e] = Epilogue::finished_gated(first[e], second[e], b[e], more[e]);
    }
    epilogue.store(static_cast<int64_t>(row) * params.ldy + column, exist, v);
  }
};

// Stores a tile whose K was not cut. The lanes of a quad exchange sums, so that each has eight
// neighbouring columns of a row: those of every fourth block. What is added to the sums of several
// blocks is asked for before any of them is stored.
inline void store_tile(const Sums& sums, const Share& share, const Finish& finish) {
  constexpr int kBlocks = Sums::kBlocksN / kParts, kQuads = (kBlocks + 3) / 4;
  // As many quads of blocks as registers are left for.
  constexpr int kRegisters =
      65536 / static_cast<int>(ceil_div(NPUSIM_BESIDE * NPUSIM_BLOCK, 128) * 128);
  constexpr int kLeft = (kRegisters - Sums::kBlocksN * 4 - 44) / 16;
  constexpr int kGroup = kParts == 2 ? 1 : smaller(kQuads, larger(1, smaller(kLeft, 4)));
  const int t = static_cast<int>(threadIdx.x % 4);
  const auto column_of = [&](int quad) { return share.first_column + (quad * 4 + t) * 8; };
  const auto eight = [&](int quad, int part, int half, float (&v)[8]) {
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (quad * 4 + j >= kBlocks) continue;
      even[j] = sums.sum(part * kBlocks + quad * 4 + j)[half * 2];
      odd[j] = sums.sum(part * kBlocks + quad * 4 + j)[half * 2 + 1];
    }
    transpose_quad(even);
    transpose_quad(odd);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      v[e * 2] = even[e];
      v[e * 2 + 1] = odd[e];
    }
  };
  float squares[2] = {};  // of either row
#pragma unroll
  for (int first = 0; first < kQuads; first += kGroup) {
    uint4 residual[kGroup][2], norm[kGroup];
    float bias[kGroup][8];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const bool exists = first + i < kQuads && (first + i) * 4 + t < kBlocks;
      const int column = exists ? column_of(first + i) : static_cast<int>(params.n);
      if constexpr (kParts == 1) {
        finish.bias(column, bias[i]);
        norm[i] = finish.norm(column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          residual[i][half] = finish.residual(share.first_row + Sums::row_of(half), column);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (first + i >= kQuads) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = share.first_row + Sums::row_of(half), column = column_of(first + i);
        float v[kParts][8];
#pragma unroll
        for (int part = 0; part < kParts; ++part) eight(first + i, part, half, v[part]);
        if ((first + i) * 4 + t >= kBlocks) continue;
        if constexpr (kParts == 2) {
          finish.store(row, column, v[0], v[kParts - 1]);
        } else {
          squares[half] += finish.store(row, column, residual[i][half], bias[i], norm[i], v[0]);
        }
      }
    }
  }
  if constexpr (kLeavesNorm) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = squares[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if (t == 0) finish.store_squares(share, share.first_row + Sums::row_of(half), sum);
    }
  }
}

// Sums of a cluster. A block leaves its own in its ring, [row][column], and has the slices of
// others copied to them: [span][row of the slice][column], behind the barriers, its own slice left
// out.
constexpr int kSliceRows = kTileRows / kSpans;
constexpr int kSliceBytes = kSliceRows * kLine * 4;
constexpr int kSentAt = kBarriersAt + kRing * 16;  // the barrier that counts them
constexpr int kSumsAt = ceil_div(kSentAt + 8, 128) * 128;
static_assert(kSpans == 1 || (kTileRows * kLine * 4 <= kBarriersAt &&
                              kSumsAt + (kSpans - 1) * kSliceBytes <= NPUSIM_SHARED));

// Where the block of span `to` has what span `from` has sent it.
inline int slice_at(int from, int to) {
  return kSumsAt + (from < to ? from : from - 1) * kSliceBytes;
}

inline void send_tile(const Sums& sums, const Share& share) {
  const unsigned base = shared_address(shared_memory);
  sync_consumers<kWorkers * 32>();  // all have multiplied what is in the ring
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* to = reinterpret_cast<float*>(shared_memory) + Sums::row_of(half) * kLine;
#pragma unroll
    for (int j = 0; j < Sums::kBlocksN; ++j) {
      to[Sums::column_of(j)] = sums.sum(j)[half * 2];
      to[Sums::column_of(j) + 1] = sums.sum(j)[half * 2 + 1];
    }
  }
  fence_proxy_async_shared();
  sync_consumers<kWorkers * 32>();
  if (threadIdx.x != 0) return;
#pragma unroll 1
  for (int i = 1; i < kSpans; ++i) {
    const int span = (share.span + i) % kSpans;
    const unsigned rank = share.sharer + kSharers * (share.neighbour + kNeighbours * span);
    copy_distributed_shared(map_shared_rank(base + slice_at(share.span, span), rank),
                            base + span * kSliceBytes, kSliceBytes,
                            map_shared_rank(base + kSentAt, rank));
  }
}

// What a thread finishes of a slice: eight columns of y at a time.
constexpr int kChunks = static_cast<int>(ceil_div(kBulkOutputs, 8));  // of a row
constexpr int kEachChunk = static_cast<int>(ceil_div(kSliceRows * kChunks, kWorkers * 32));

inline void finish_slice(const Share& share, const Finish& finish, unsigned sent) {
  const auto line = [&](int i) {
    return (static_cast<int>(threadIdx.x) + i * kWorkers * 32) / kChunks;
  };
  const auto column = [&](int i) {
    return (static_cast<int>(threadIdx.x) + i * kWorkers * 32) % kChunks * 8;
  };
  const int first_row = share.first_row + share.span * kSliceRows;
  uint4 residual[kEachChunk], norm[kEachChunk];
  float bias[kEachChunk][8];
  if constexpr (kParts == 1) {
#pragma unroll
    for (int i = 0; i < kEachChunk; ++i) {
      const int row = line(i) < kSliceRows ? first_row + line(i) : static_cast<int>(params.m);
      residual[i] = finish.residual(row, share.first_column + column(i));
      finish.bias(share.first_column + column(i), bias[i]);
      norm[i] = finish.norm(share.first_column + column(i));
    }
  }
  // Squares of eight columns take the place of the first of this block's own sums of them.
  float* own = reinterpret_cast<float*>(shared_memory + share.span * kSliceBytes);
  wait_barrier(sent, 0);  // all sums are here
#pragma unroll
  for (int i = 0; i < kEachChunk; ++i) {
    if (line(i) >= kSliceRows) break;
    float v[kParts][8] = {};
#pragma unroll
    for (int span = 0; span < kSpans; ++span) {
      const int at = span == share.span ? span * kSliceBytes : slice_at(span, share.span);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float more[8];
        load_floats<8>(reinterpret_cast<const float*>(shared_memory + at) + line(i) * kLine +
                           part * kBulkOutputs + column(i),
                       more);
#pragma unroll
        for (int e = 0; e < 8; ++e) v[part][e] += more[e];
      }
    }
    const int row = first_row + line(i);
    if constexpr (kParts == 2) {
      finish.store(row, share.first_column + column(i), v[0], v[kParts - 1]);
    } else {
      const float squares =
          finish.store(row, share.first_column + column(i), residual[i], bias[i], norm[i], v[0]);
      if constexpr (kLeavesNorm) own[line(i) * kLine + column(i)] = squares;
    }
  }
  if constexpr (kLeavesNorm) {
    sync_consumers<kWorkers * 32>();
    if (threadIdx.x >= kSliceRows) return;
    const float* row = own + threadIdx.x * kLine;
    float sum = 0.0f;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) sum += row[chunk * 8];
    finish.store_squares(share, first_row + static_cast<int>(threadIdx.x), sum);
  }
}

}  // namespace npusim
