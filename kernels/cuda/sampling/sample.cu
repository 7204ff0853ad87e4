// One step of generating: the newest token goes into the history, the next one is drawn from the
// scores as kernels/shared/sampling.h says. NPUSIM_RANKS blocks, a cluster, share the tokens
// (tokens.h), find bounds (bounds.h) and draw (draw.h). Where there are no clusters, the first
// block does it all.
#include "kernels/cuda/sampling/draw.h"

namespace npusim {

// The operands that are written.
struct Result {
  int64_t *token, *row, *chosen;

  void put(int64_t newest, int64_t next) const {
    *row = newest;
    *token = next < 0 ? 0 : next;
    *chosen = next;
  }
};

// Draws a token of those that options leave.
template <typename Found>
inline void draw(const Stretch& tokens, Exchange& exchange, const Options& options,
                 const Scale& scale, bool plain, uint64_t bits, int rank, Found found) {
  halves[0][threadIdx.x] = halves[1][threadIdx.x] = 0;
  __syncthreads();
  int turn = 0;
  const auto k = static_cast<uint64_t>(sampling::kept_count(options, kSize));
  uint32_t lowest = sampling::kNoKey + 1;
  if (k > 0) {
    const auto count = [&](int, const Numbers& keys, auto add) {
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const int part = scale.part(keys.at[e]);
        if (part > 0) add(part, 1);
      }
    };
    const Bound part = find_digit<kFlight>(tokens, turn, rank, 0, count, {&options, k});
    if (part.at > 0 && part.above + part.at <= kFew) {
      gather_few(tokens, exchange, scale, static_cast<int>(part.key));
      meet();
      if (rank == 0) draw_few(exchange, options, scale, k, bits, found);
      return;
    }
    if (part.at > 0) {
      lowest = find_key(tokens, turn, rank, scale, part, lowest, plain, false).key;
    }
  }
  Kept kept{lowest - 1, 0, 0, sampling::least_weight(options)};
  Sums mine;
  if (options.top_p < 1) {
    keep_nucleus(tokens, turn, rank, options, scale, lowest, plain, kept);
    mine = sum_kept(tokens, kept);
  } else {
    mine = weigh_kept(tokens, kept, scale);
  }
  locate(
      tokens, exchange, rank, kept, mine,
      [&](uint64_t total) { return sampling::drawn(bits, total); }, found);
}

inline void sample(const T* logits, const Options& options, uint64_t bits, int64_t length,
                   const int64_t* history, const Result& result, uint32_t* keys,
                   Exchange& exchange) {
  const int rank = blockIdx.x;
  const Stretch tokens(logits, keys, rank);
  const int64_t newest = *result.token;
  const bool draws = options.temperature > 0, penalises = options.repetition_penalty != 1.0;
  float top = -sampling::kInfiniteScore;
  int first = 0;
  const auto compare = [&](int token, const float (&scores)[kPack]) {
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      if (scores[e] > top) top = scores[e], first = token + e;
    }
  };
  if (draws || penalises) {
    tokens.from_scores([&](int token, const float (&scores)[kPack]) {
      Numbers keys;
#pragma unroll
      for (int e = 0; e < kPack; ++e) keys.at[e] = sampling::key_of(scores[e]);
      tokens.keep_keys(token, keys);
      compare(token, scores);
    });
  } else {
    tokens.from_scores(compare);
  }
  if (rank == 0 && threadIdx.x == 0) show(exchange.count, 0);
  if (penalises) {
    const auto penalty = static_cast<float>(options.repetition_penalty);
    tokens.penalise(history, length, newest, penalty, rank);
    top = -sampling::kInfiniteScore;
    tokens.template from_keys<kFlight>(0, kRounds, [&](int token, const Numbers& keys) {
      float scores[kPack];
#pragma unroll
      for (int e = 0; e < kPack; ++e) scores[e] = sampling::score_of(keys.at[e]);
      compare(token, scores);
    });
  }
  uint64_t best =
      static_cast<uint64_t>(sampling::key_of(top)) << 32 | static_cast<uint32_t>(~first);
  best = fold_lanes<kThreads>(best, Higher{});
  if (threadIdx.x == 0) show(exchange.best[rank], best);
  meet();
  const int lane = tokens.lane();
  best = fold_warp(lane < kRanks ? seen(exchange.best[lane]) : uint64_t{0}, Higher{});
  const auto highest = static_cast<uint32_t>(best >> 32);
  if (!draws || highest <= sampling::kNoKey) {
    first = static_cast<uint32_t>(~best);
    if (rank == 0 && threadIdx.x == 0) result.put(newest, highest > sampling::kNoKey ? first : -1);
    return;
  }
  const Scale scale(highest, options.temperature);
  draw(tokens, exchange, options, scale, !penalises, bits, rank,
       [&](int token) { result.put(newest, token); });
}

}  // namespace npusim

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define NPUSIM_CLUSTER __cluster_dims__(NPUSIM_RANKS, 1, 1)
#else
#define NPUSIM_CLUSTER
#endif
extern "C" __global__ void NPUSIM_CLUSTER __launch_bounds__(NPUSIM_BLOCK)
    npusim_kernel(const void* logits, const void* options, const void* seed, const void* length,
                  void* token, void* history, void* chosen, void* scratch,
                  npusim::Failure* failure) {
  using namespace npusim;
  if (blockIdx.x >= kRanks) return;
  const int64_t count = *static_cast<const int64_t*>(length);
  if (count < 1 || count > params.capacity) {
    if (threadIdx.x == 0) report(failure, kOutOfRange, count, params.capacity);
    return;
  }
  auto* rows = static_cast<int64_t*>(history);
  const Result result{static_cast<int64_t*>(token), rows + count - 1,
                      static_cast<int64_t*>(chosen)};
  const uint64_t state =
      *static_cast<const uint64_t*>(seed) + static_cast<uint64_t>(count) * sampling::kStep;
  auto* exchange = static_cast<Exchange*>(scratch);
  sample(static_cast<const T*>(logits), *static_cast<const Options*>(options),
         sampling::mixed(state), count, rows, result, reinterpret_cast<uint32_t*>(exchange + 1),
         *exchange);
}
