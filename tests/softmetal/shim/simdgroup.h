// Barriers and what the lanes of a SIMD group, and of a quad, tell each other. Each is a meeting
// point, known by its place in the source. A lane that asks for the value of one that does not take
// part (beyond the grid's edge, or returned) gets bytes of 0xFF: a NaN, or -1.
#pragma once

namespace _msl {
// The place of the call: default arguments are evaluated where they are used.
struct Here {
  unsigned line, column;
  explicit Here(unsigned l = __builtin_LINE(), unsigned c = __builtin_COLUMN())
      : line(l), column(c) {}
};

extern "C" softmetal::Engine* softmetal_engine;
#ifndef MSL_STRICT
__attribute__((visibility("default"))) softmetal::Engine* softmetal_engine;
#endif

template <typename T>
struct Lanes {
  softmetal::Meeting meeting;
  unsigned self = softmetal_engine->current->thread_index_in_simdgroup;

  Lanes(T value, const char* operation, Here here)
      : meeting(softmetal_engine->meet({operation, here.line, here.column}, &value, sizeof(T))) {
    static_assert(sizeof(T) <= softmetal::kSlotBytes, "a lane cannot give that much");
    static_assert(
        !metal::is_integral_v<typename shape<T>::scalar> || sizeof(typename shape<T>::scalar) <= 4,
        "lanes give integers of up to 32 bits");
  }
  bool has(unsigned lane) const {
    return lane < softmetal::kSimdWidth && (meeting.lanes >> lane & 1u) != 0;
  }
  T operator[](unsigned lane) const {
    T value;
    if (has(lane)) {
      __builtin_memcpy(&value, meeting.slots + lane * softmetal::kSlotBytes, sizeof(T));
    } else {
      __builtin_memset(&value, 0xFF, sizeof(T));
    }
    return value;
  }
};

// Folds the lanes [begin, end) that take part, in pairs of neighbours, then pairs of pairs.
template <typename T, typename F>
T fold(const Lanes<T>& lanes, unsigned begin, unsigned end, F combine) {
  T values[softmetal::kSimdWidth];
  unsigned count = 0;
  for (unsigned lane = begin; lane < end; ++lane) {
    if (lanes.has(lane)) values[count++] = lanes[lane];
  }
  for (; count > 1; count = (count + 1) / 2) {
    for (unsigned i = 0; i < count / 2; ++i) {
      values[i] = combine(values[2 * i], values[2 * i + 1]);
    }
    if (count % 2 != 0) values[count / 2] = values[count - 1];
  }
  return values[0];
}
template <typename T, typename F>
T scan(const Lanes<T>& lanes, T start, bool inclusive, F combine) {
  T value = start;
  for (unsigned lane = 0; lane < lanes.self + (inclusive ? 1 : 0); ++lane) {
    if (lanes.has(lane)) value = combine(value, lanes[lane]);
  }
  return value;
}
}  // namespace _msl

namespace metal {
enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<uint>(a) | static_cast<uint>(b));
}

inline void threadgroup_barrier(mem_flags, _msl::Here here = _msl::Here()) {
  _msl::softmetal_engine->threadgroup_barrier({"threadgroup_barrier", here.line, here.column});
}
inline void simdgroup_barrier(mem_flags, _msl::Here here = _msl::Here()) {
  _msl::softmetal_engine->simdgroup_barrier({"simdgroup_barrier", here.line, here.column});
}

#define MSL_FOLD(name, expression)                                          \
  template <typename T>                                                     \
  T simd_##name(T x, _msl::Here here = _msl::Here()) {                      \
    const _msl::Lanes<T> lanes(x, "simd_" #name, here);                     \
    return _msl::fold(lanes, 0, softmetal::kSimdWidth,                      \
                      [](T a, T b) { return static_cast<T>(expression); }); \
  }                                                                         \
  template <typename T>                                                     \
  T quad_##name(T x, _msl::Here here = _msl::Here()) {                      \
    const _msl::Lanes<T> lanes(x, "quad_" #name, here);                     \
    return _msl::fold(lanes, lanes.self & ~3u, (lanes.self & ~3u) + 4,      \
                      [](T a, T b) { return static_cast<T>(expression); }); \
  }
MSL_FOLD(sum, a + b)
MSL_FOLD(product, a* b)
MSL_FOLD(min, min(a, b))
MSL_FOLD(max, max(a, b))
MSL_FOLD(and, a& b)
MSL_FOLD(or, a | b)
MSL_FOLD(xor, a ^ b)
#undef MSL_FOLD

#define MSL_SCAN(name, start, expression)                                   \
  template <typename T>                                                     \
  T simd_prefix_inclusive_##name(T x, _msl::Here here = _msl::Here()) {     \
    const _msl::Lanes<T> lanes(x, "simd_prefix_inclusive_" #name, here);    \
    return _msl::scan(lanes, static_cast<T>(start), true,                   \
                      [](T a, T b) { return static_cast<T>(expression); }); \
  }                                                                         \
  template <typename T>                                                     \
  T simd_prefix_exclusive_##name(T x, _msl::Here here = _msl::Here()) {     \
    const _msl::Lanes<T> lanes(x, "simd_prefix_exclusive_" #name, here);    \
    return _msl::scan(lanes, static_cast<T>(start), false,                  \
                      [](T a, T b) { return static_cast<T>(expression); }); \
  }
MSL_SCAN(sum, 0, a + b)
MSL_SCAN(product, 1, a* b)
#undef MSL_SCAN

template <typename T>
T simd_shuffle(T x, ushort lane, _msl::Here here = _msl::Here()) {
  return _msl::Lanes<T>(x, "simd_shuffle", here)[lane];
}
template <typename T>
T simd_broadcast(T x, ushort lane, _msl::Here here = _msl::Here()) {
  return _msl::Lanes<T>(x, "simd_broadcast", here)[lane];
}
template <typename T>
T simd_broadcast_first(T x, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<T> lanes(x, "simd_broadcast_first", here);
  return lanes[static_cast<unsigned>(__builtin_ctz(lanes.meeting.lanes))];
}
template <typename T>
T simd_shuffle_xor(T x, ushort mask, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<T> lanes(x, "simd_shuffle_xor", here);
  return lanes[lanes.self ^ mask];
}
// Lanes beyond the end keep their own value.
template <typename T>
T simd_shuffle_down(T x, ushort by, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<T> lanes(x, "simd_shuffle_down", here);
  return lanes.self + by < softmetal::kSimdWidth ? lanes[lanes.self + by] : x;
}
template <typename T>
T simd_shuffle_up(T x, ushort by, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<T> lanes(x, "simd_shuffle_up", here);
  return lanes.self >= by ? lanes[lanes.self - by] : x;
}
template <typename T>
T quad_shuffle(T x, ushort lane, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<T> lanes(x, "quad_shuffle", here);
  return lane < 4 ? lanes[(lanes.self & ~3u) + lane] : lanes[softmetal::kSimdWidth];
}
template <typename T>
T quad_broadcast(T x, ushort lane, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<T> lanes(x, "quad_broadcast", here);
  return lane < 4 ? lanes[(lanes.self & ~3u) + lane] : lanes[softmetal::kSimdWidth];
}
template <typename T>
T quad_shuffle_xor(T x, ushort mask, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<T> lanes(x, "quad_shuffle_xor", here);
  return mask < 4 ? lanes[lanes.self ^ mask] : lanes[softmetal::kSimdWidth];
}

class simd_vote {
 public:
  typedef ulong vote_t;
  explicit constexpr simd_vote(vote_t v = 0) : votes_(v) {}
  explicit constexpr operator vote_t() const { return votes_; }

 private:
  vote_t votes_;
};
inline simd_vote simd_ballot(bool x, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<bool> lanes(x, "simd_ballot", here);
  ulong votes = 0;
  for (unsigned lane = 0; lane < softmetal::kSimdWidth; ++lane) {
    if (lanes.has(lane) && lanes[lane]) votes |= 1ul << lane;
  }
  return simd_vote(votes);
}
inline simd_vote simd_active_threads_mask(_msl::Here here = _msl::Here()) {
  return simd_vote(_msl::Lanes<bool>(true, "simd_active_threads_mask", here).meeting.lanes);
}
inline bool simd_all(bool x, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<bool> lanes(x, "simd_all", here);
  return _msl::fold(lanes, 0, softmetal::kSimdWidth, [](bool a, bool b) { return a && b; });
}
inline bool simd_any(bool x, _msl::Here here = _msl::Here()) {
  const _msl::Lanes<bool> lanes(x, "simd_any", here);
  return _msl::fold(lanes, 0, softmetal::kSimdWidth, [](bool a, bool b) { return a || b; });
}
inline bool simd_is_first(_msl::Here here = _msl::Here()) {
  const _msl::Lanes<bool> lanes(true, "simd_is_first", here);
  return static_cast<unsigned>(__builtin_ctz(lanes.meeting.lanes)) == lanes.self;
}
}  // namespace metal
