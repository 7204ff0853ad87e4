// The same functions element by element, and those of vectors alone.
#pragma once

namespace metal {
#define MSL_EACH_1(name)                                           \
  template <typename T, int N>                                     \
  vec<T, N> name(vec<T, N> x) {                                    \
    vec<T, N> r;                                                   \
    for (int i = 0; i < N; ++i) r[i] = name(static_cast<T>(x[i])); \
    return r;                                                      \
  }
#define MSL_EACH_2(name)                                                                 \
  template <typename T, int N>                                                           \
  vec<T, N> name(vec<T, N> x, vec<T, N> y) {                                             \
    vec<T, N> r;                                                                         \
    for (int i = 0; i < N; ++i) r[i] = name(static_cast<T>(x[i]), static_cast<T>(y[i])); \
    return r;                                                                            \
  }
#define MSL_EACH_3(name)                                                             \
  template <typename T, int N>                                                       \
  vec<T, N> name(vec<T, N> x, vec<T, N> y, vec<T, N> z) {                            \
    vec<T, N> r;                                                                     \
    for (int i = 0; i < N; ++i)                                                      \
      r[i] = name(static_cast<T>(x[i]), static_cast<T>(y[i]), static_cast<T>(z[i])); \
    return r;                                                                        \
  }
MSL_EACH_1(abs)
MSL_EACH_1(ceil)
MSL_EACH_1(cos)
MSL_EACH_1(exp)
MSL_EACH_1(exp2)
MSL_EACH_1(fabs)
MSL_EACH_1(floor)
MSL_EACH_1(fract)
MSL_EACH_1(log)
MSL_EACH_1(log2)
MSL_EACH_1(rint)
MSL_EACH_1(round)
MSL_EACH_1(rsqrt)
MSL_EACH_1(saturate)
MSL_EACH_1(sign)
MSL_EACH_1(sin)
MSL_EACH_1(sqrt)
MSL_EACH_1(tanh)
MSL_EACH_1(trunc)
MSL_EACH_1(popcount)
MSL_EACH_2(fmax)
MSL_EACH_2(fmin)
MSL_EACH_2(fmod)
MSL_EACH_2(max)
MSL_EACH_2(min)
MSL_EACH_2(pow)
MSL_EACH_2(step)
MSL_EACH_3(clamp)
MSL_EACH_3(fma)
MSL_EACH_3(mix)
#undef MSL_EACH_1
#undef MSL_EACH_2
#undef MSL_EACH_3

template <typename T, int N>
vec<T, N> clamp(vec<T, N> x, _msl::same_t<T> low, _msl::same_t<T> high) {
  for (int i = 0; i < N; ++i) x[i] = clamp(static_cast<T>(x[i]), low, high);
  return x;
}
template <typename T, int N>
T dot(vec<T, N> x, vec<T, N> y) {
  T sum = x[0] * y[0];
  for (int i = 1; i < N; ++i) sum += x[i] * y[i];
  return sum;
}
template <typename T, int N>
T length_squared(vec<T, N> x) {
  return dot(x, x);
}
template <typename T, int N>
T length(vec<T, N> x) {
  return sqrt(dot(x, x));
}
template <typename T, int N>
vec<T, N> normalize(vec<T, N> x) {
  return x * rsqrt(dot(x, x));
}
// Comparisons of vectors give integers of the same width in clang, as their masks are.
template <typename T, int N>
bool any(vec<T, N> x) {
  bool r = false;
  for (int i = 0; i < N; ++i) r = r || x[i] != 0;
  return r;
}
template <typename T, int N>
bool all(vec<T, N> x) {
  bool r = true;
  for (int i = 0; i < N; ++i) r = r && x[i] != 0;
  return r;
}
template <typename T, typename M, int N>
vec<T, N> select(vec<T, N> if_false, vec<T, N> if_true, vec<M, N> which) {
  for (int i = 0; i < N; ++i) if_false[i] = which[i] != 0 ? if_true[i] : if_false[i];
  return if_false;
}
}  // namespace metal
