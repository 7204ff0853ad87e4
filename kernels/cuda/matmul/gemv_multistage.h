// Products of one row of x by blocks that fill the device once, on the tensor cores. A block has
// NPUSIM_COLUMNS columns of y. Their rows of W, 16 a tile, pass through shared memory in pieces of
// 64 elements: of a tile's pieces every kWarps-th is a warp's, which asks for NPUSIM_STAGES ahead
// of the one it multiplies. What a warp copies it reads itself, so no warp waits for another but at
// the end, where their sums are added in order.
//
// x is a column of the tensor core's other operand. Where it is normalised on the way, its product
// with the norm's weight takes two, the second for what does not fit in the 16 bits of the first.
//
// The first pieces are asked for before the wait for x where `kWeightsUnwritten`. That they wait in
// shared memory, not in registers, lets blocks of the next launches stand beside these and ask for
// theirs. Included where X, W and the rest are known that gemv_stream.h names, both of 16 bits, and
// all rows of W end on 16 bytes.
#pragma once

namespace npusim {

constexpr int kWarps = NPUSIM_BLOCK / 32, kStages = NPUSIM_STAGES, kColumns = NPUSIM_COLUMNS;
constexpr int kRows = 16 / kParts;  // columns of y of a tile
constexpr int kTiles = static_cast<int>(ceil_div(kColumns, kRows));
constexpr int kUsed = kTiles * kParts > 1 ? 16 : (kColumns + 3) / 4 * 4;  // rows of a tile
constexpr int kLine = 128, kSlot = kUsed * kLine;       // bytes of a row of a piece, and of a piece
constexpr int kLoads = static_cast<int>(params.k / 8);  // of 16 bytes, in a row
constexpr int kPieces = (kLoads + 7) / 8, kMost = (kPieces + kWarps - 1) / kWarps;  // of a warp
constexpr int kTurns = (kMost + 3) / 4;                   // in which a warp reads its pieces of x
constexpr int kXs = kWarps * kStages * kSlot;             // where they lie
constexpr int kOwnX = kMost * kLine * (kNormed ? 2 : 1);  // bytes of a warp's
static_assert(params.m == 1 && params.k % 8 == 0 && kIs16Bit<W> && kSame<X, W>);
static_assert(kColumns <= NPUSIM_BLOCK && kXs + kWarps * kOwnX <= NPUSIM_SHARED);

extern __shared__ __align__(128) unsigned char shared_memory[];
__shared__ float tile_sums[kWarps][kTiles * 16], warp_squares[kWarps];

// Where chunk c of row r lies, so that eight lanes that read two rows' halves meet all banks.
inline unsigned at_half(int row, int chunk) {
  return row * kLine + ((chunk ^ (row & 1) << 2) << 4);
}
// Of a warp's turn n through x, the chunk that this lane reads.
inline int chunk_of_x(int n) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  return ((n * 4 + lane / 8) * kWarps + warp) * 8 + lane % 8;
}

// A warp's pieces of all tiles, one behind the other. kWide: all rows begin on 16 bytes.
template <bool kWide, typename W, typename Rows>
struct Ring {
  const Rows& weights;
  const int64_t first;
  const int columns, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int tile = 0, piece = threadIdx.x / 32;  // to ask for next
  const W* rows[kUsed / 4];                // of that tile, at this lane's chunk
  unsigned existing = 0;                   // bit n: rows[n] exists
  unsigned begin, to;                      // this lane's place in the first slot, and in the next

  Ring(const Rows& weights, int64_t first, int columns, unsigned slots)
      : weights(weights),
        first(first),
        columns(columns),
        begin(slots + warp * kStages * kSlot + at_half(lane / 8, lane % 8)),
        to(begin) {
    find_rows();
  }

  void find_rows() {
    existing = 0;
#pragma unroll
    for (int n = 0; n < kUsed / 4; ++n) {
      const int row = n * 4 + lane / 8, column = tile * kRows + row % kRows;
      const bool exists = column < columns;
      existing |= static_cast<unsigned>(exists) << n;
      const int64_t at = exists ? first + column + row / kRows * params.n : 0;
      rows[n] = weights.row(at) + lane % 8 * 8;
    }
  }
  // Asks for the next piece; what does not exist is zero.
  void fill() {
    if (tile < kTiles && piece < kPieces) {
      const bool inside = kLoads % 8 == 0 || piece * 8 + lane % 8 < kLoads;
#pragma unroll
      for (int n = 0; n < kUsed / 4; ++n) {
        const bool exists = inside && (existing >> n & 1) != 0;
        const W* from = rows[n] + (inside ? piece * 64 : 0);
        if constexpr (kWide) {
          cp_async_evict_first(to + n * 4 * kLine, from, exists);
        } else {
          store_shared(to + n * 4 * kLine, exists ? gather_chunk(from, 8) : uint4{0, 0, 0, 0});
        }
      }
      to = to + kSlot == begin + kStages * kSlot ? begin : to + kSlot;
      piece += kWarps;
      if (piece >= kPieces) {
        piece = warp;
        if (++tile < kTiles) find_rows();
      }
    }
    cp_async_commit();
  }
};

// What eight numbers are in 16 bits, and what that leaves of them.
template <typename W>
void split_numbers(const float (&v)[8], uint4& high, uint4& low) {
  unsigned words[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[0][i] = pack_pair<W>(v[2 * i], v[2 * i + 1]);
    const W first{static_cast<unsigned short>(words[0][i])};
    const W second{static_cast<unsigned short>(words[0][i] >> 16)};
    words[1][i] = pack_pair<W>(v[2 * i] - to_float(first), v[2 * i + 1] - to_float(second));
  }
  high = {words[0][0], words[0][1], words[0][2], words[0][3]};
  low = {words[1][0], words[1][1], words[1][2], words[1][3]};
}

// This warp's chunks of the norm's weight.
template <bool kWide, typename W>
void read_gains(const W* norm, uint4 (&gains)[kTurns]) {
#pragma unroll
  for (int n = 0; n < kTurns; ++n) {
    const int at = chunk_of_x(n);
    gains[n] = uint4{0, 0, 0, 0};
    if (at < kLoads) gains[n] = kWide ? load_kept(norm + at * 8) : gather_chunk(norm + at * 8, 8);
  }
}

// A power of two, and one over it, which brings numbers up to `top` into the range of W.
struct Factor {
  float up = 1.0f, down = 1.0f;
};
template <typename W>
Factor factor_for(float top) {
  constexpr int kWanted = 8;  // exponent of the largest, far from what 16 bits hold
  if constexpr (kSame<W, float16>) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, far));
    }
    const int exponent = static_cast<int>(__float_as_uint(top) >> 23);  // biased
    if (exponent > kWanted) {
      return {__uint_as_float((254 + kWanted - exponent) << 23),
              __uint_as_float((exponent - kWanted) << 23)};
    }
  }
  return {};
}

// This lane's share of the sum of squares of x, and by what sums over pieces are to be multiplied.
struct RowOfWarp {
  float squares = 0.0f, scale = 1.0f;
};

// This warp's pieces of x to shared memory, times the norm's weight.
template <bool kWide, typename X, typename W>
RowOfWarp read_row(const X* x, const uint4 (&gains)[kTurns], unsigned to) {
  uint4 loaded[kTurns];
#pragma unroll
  for (int n = 0; n < kTurns; ++n) {
    const int at = chunk_of_x(n);
    loaded[n] = uint4{0, 0, 0, 0};
    if (at < kLoads) loaded[n] = kWide ? load_kept(x + at * 8) : gather_chunk(x + at * 8, 8);
  }
  RowOfWarp row;
  float v[kNormed ? kTurns : 1][8], top = 0.0f;
  Factor factor;
  if constexpr (kNormed) {
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
      float gain[8];
      unpack<X>(loaded[n], v[n]);
      unpack<W>(gains[n], gain);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        row.squares += v[n][e] * v[n][e];
        v[n][e] *= gain[e];
        top = fmaxf(top, fabsf(v[n][e]));
      }
    }
    factor = factor_for<W>(top);
    row.scale = factor.down;
  }
#pragma unroll
  for (int n = 0; n < kTurns; ++n) {
    const int piece = n * 4 + threadIdx.x % 32 / 8;
    const unsigned place = to + piece * kLine + threadIdx.x % 8 * 16;
    if (piece >= kMost) continue;
    if constexpr (kNormed) {
#pragma unroll
      for (int e = 0; e < 8; ++e) v[n][e] *= factor.up;
      uint4 high, low;
      split_numbers<W>(v[n], high, low);
      store_shared(place, high);
      store_shared(place + kMost * kLine, low);
    } else {
      store_shared(place, loaded[n]);
    }
  }
  __syncwarp();
  return row;
}

inline float sum_of_warp(float v) {
#pragma unroll
  for (int far = 16; far > 0; far /= 2) v += __shfl_xor_sync(0xffffffffu, v, far);
  return v;
}

// Multiplies this warp's pieces by its x, and leaves the sums of each row in tile_sums.
template <typename W, typename R>
void multiply_pieces(R& ring, unsigned slots, unsigned xs, float scale) {
  const int g = ring.lane / 4, t = ring.lane % 4;
  const unsigned own = slots + ring.warp * kStages * kSlot;
  // A row that a tile has not is one of its last two: nobody asks for the sums.
  const int low = g < kUsed ? g : kUsed - 2 + g % 2;
  const int high = g + 8 < kUsed ? g + 8 : kUsed - 2 + g % 2;
  const unsigned halves[] = {own + at_half(low, t), own + at_half(low, t + 4)};
  const int other = kUsed == 16 ? 8 * kLine : (high - low) * kLine;
  const unsigned x = xs + (kNormed ? (g & 1) * kMost * kLine : 0) + t * 16;
  const int pieces = (kPieces - ring.warp + kWarps - 1) / kWarps;
  unsigned slot = 0;
#pragma unroll 1
  for (int tile = 0; tile < kTiles; ++tile) {
    float sums[2][4] = {};
#pragma unroll 1
    for (int i = 0; i < pieces; ++i) {
      cp_async_wait<kStages - 1>();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 a = load_shared(halves[j] + slot);
        const uint4 b = load_shared(halves[j] + slot + other);
        const uint4 c = load_shared(x + i * kLine + j * 64);
        mma_16x8x16<W>(sums[j], a.x, b.x, a.y, b.y, c.x, c.y);
        mma_16x8x16<W>(sums[j], a.z, b.z, a.w, b.w, c.z, c.w);
      }
      __syncwarp();
      ring.fill();
      slot = slot + kSlot == kStages * kSlot ? 0 : slot + kSlot;
    }
    if (t > 0) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = sums[0][half * 2] + sums[1][half * 2];
      if constexpr (kNormed) sum += sums[0][half * 2 + 1] + sums[1][half * 2 + 1];
      tile_sums[ring.warp][tile * 16 + half * 8 + g] = sum * scale;
    }
  }
}

template <bool kWide, typename X, typename W, typename Rows>
void stream_ring(const Rows& weights, const X* x, const Epilogue& epilogue) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = threadIdx.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns;
  const int columns = static_cast<int>(smaller<int64_t>(kColumns, params.n - first));
  const unsigned slots = shared_address(shared_memory), xs = slots + kXs + warp * kOwnX;

  Waiting output(0, first + mine, mine < columns);
  if constexpr (!kWeightsUnwritten) wait_on_dependencies();
  Ring<kWide, W, Rows> ring(weights, first, columns, slots);
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) ring.fill();
  uint4 gains[kTurns] = {};
  if constexpr (kNormed) read_gains<kWide>(weights.norm(), gains);
  if constexpr (kBiasUnwritten) output.read_bias(epilogue);
  if constexpr (kWeightsUnwritten) wait_on_dependencies();
  if constexpr (!kBiasUnwritten) output.read_bias(epilogue);

  const RowOfWarp row = read_row<kWide, X, W>(x, gains, xs);
  output.read_residual(epilogue);
  multiply_pieces<W>(ring, slots, xs, row.scale);
  if constexpr (kNormed) {
    const float sum = sum_of_warp(row.squares);
    if (lane == 0) warp_squares[warp] = sum;
  }
  __syncthreads();
  if (!output.exists) return;
  float v[kParts] = {}, total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      v[part] += tile_sums[w][mine / kRows * 16 + part * kRows + mine % kRows];
    }
    if constexpr (kNormed) total += warp_squares[w];
  }
  if constexpr (kNormed) {
    const float scale = scalar::rsqrt(total / static_cast<float>(params.k) + kNormEps);
#pragma unroll
    for (int part = 0; part < kParts; ++part) v[part] *= scale;
  }
  output.store(epilogue, v);
}

}  // namespace npusim
