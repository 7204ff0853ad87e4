// One step of generating: the newest token goes into the history, the next one is drawn from the
// scores as kernels/shared/sampling.h says. One task: its time is small against the linears that
// make the scores.
#include "kernels/cpu/check.h"
#include "kernels/cpu/convert.h"
#include "kernels/shared/sample_serial.h"

namespace npusim::cpu::NPUSIM_ISA {
namespace {

using Params = abi::SampleParams;
using sampling::Candidate;

enum Operand : int { kLogits, kOptions, kSeed, kLength, kToken, kHistory, kChosen, kOperands };

// The scores of tokens of the history, each changed once from its score of `logits`.
template <typename T>
void penalise(const T* logits, int64_t size, const int64_t* history, int64_t length, float penalty,
              float* scores) {
  for (int64_t i = 0; i < length; ++i) {
    const int64_t token = history[i];
    if (token < 0 || token >= size) continue;
    scores[token] = sampling::penalised(decode<float>(logits[token]), penalty);
  }
}

template <typename T>
int64_t choose(const Params& p, const KernelCall& call, int64_t length) {
  const auto* logits = static_cast<const T*>(call.operands[kLogits]);
  sampling::Options options;
  uint64_t seed;
  std::memcpy(&options, call.operands[kOptions], sizeof options);
  std::memcpy(&seed, call.operands[kSeed], sizeof seed);
  auto* candidates = static_cast<Candidate*>(call.scratch);
  auto* scores = reinterpret_cast<float*>(candidates + p.size);
  auto* maxima = reinterpret_cast<uint32_t*>(scores + p.size);
  for (int64_t i = 0; i < p.size; ++i) scores[i] = decode<float>(logits[i]);
  if (options.repetition_penalty != 1.0) {
    penalise(logits, p.size, static_cast<const int64_t*>(call.operands[kHistory]), length,
             static_cast<float>(options.repetition_penalty), scores);
  }
  const auto steps = static_cast<uint64_t>(length);
  return sampling::choose(scores, p.size, options, sampling::mixed(seed + steps * sampling::kStep),
                          {.maxima = maxima, .candidates = candidates});
}

void run(const KernelCall& call) {
  const Params& p = *static_cast<const Params*>(call.params);
  auto* token = static_cast<int64_t*>(call.operands[kToken]);
  const int64_t length = *static_cast<const int64_t*>(call.operands[kLength]);
  if (length < 1 || length > p.capacity) {
    call.failure->report("the number of tokens", length, p.capacity);
    return;
  }
  static_cast<int64_t*>(call.operands[kHistory])[length - 1] = *token;
  int64_t chosen = -1;
  with_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (__is_same(T, float) || __is_same(T, float16) || __is_same(T, bfloat16)) {
      chosen = choose<T>(p, call, length);
    }
  });
  *token = chosen < 0 ? 0 : chosen;
  // Behind all else: who watches this memory from another thread may then let go of the rest.
  __atomic_store_n(static_cast<int64_t*>(call.operands[kChosen]), chosen, __ATOMIC_RELEASE);
}

[[gnu::cold]] const char* check(const KernelCheck& c) {
  const Params& p = *static_cast<const Params*>(c.params);
  if (const char* why = operand_count(c, kOperands)) return why;
  if (!is_float(p.dtype)) return "the scores are no floats";
  if (p.size < 1 || p.size > INT32_MAX) return "the number of tokens is out of range";
  if (p.capacity < 1) return "the history has no rows";
  constexpr int64_t kWords[] = {0, sizeof(sampling::Options) / 8, 1, 1, 1, 0, 1};
  if (const char* why = Region().dim(p.size, 1).reads(c, kLogits, element_size(p.dtype)))
    return why;
  for (int i = kOptions; i < kOperands; ++i) {
    const int64_t words = i == kHistory ? p.capacity : kWords[i];
    const Region region = Region().dim(words, 1);
    if (const char* why = i < kToken ? region.reads(c, static_cast<size_t>(i), 8)
                                     : region.writes(c, static_cast<size_t>(i), 8))
      return why;
  }
  return nullptr;
}

int64_t tasks(const void*, int64_t) {
  return 1;
}

int64_t scratch(const void* params) {
  const Params& p = *static_cast<const Params*>(params);
  constexpr int64_t kScore = sizeof(Candidate) + sizeof(float);
  return p.size * kScore + sampling::blocks_of(p.size) * int64_t{sizeof(uint32_t)};
}

int outputs(const void*) {
  return 3;
}

}  // namespace

extern const KernelEntry sample_kernel;
const KernelEntry sample_kernel = {"sample", Params::kSchema, sizeof(Params), run,
                                   check,    tasks,           scratch,        outputs};

}  // namespace npusim::cpu::NPUSIM_ISA
