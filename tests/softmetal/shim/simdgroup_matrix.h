// simdgroup_matrix, 8×8: each of the 32 lanes holds two elements that stand side by side in a row.
// Which ones is Apple's affair; there are two layouts here, so that a kernel that relies on one is
// found. Products are summed in float, in the order of k.
#pragma once

namespace _msl {
// Row of a lane's two elements, and column of the first.
inline unsigned matrix_row(unsigned lane) {
  return softmetal_engine->matrix_layout == 0 ? (lane / 4 & 4) + lane / 2 % 4 : lane / 4;
}
inline unsigned matrix_column(unsigned lane) {
  return softmetal_engine->matrix_layout == 0 ? (lane / 4 & 2) * 2 + lane % 2 * 2 : lane % 4 * 2;
}
template <typename T>
struct Pair {
  T value[2];
};
template <typename A, typename B>
struct Pairs {
  Pair<A> a;
  Pair<B> b;
};
// Whole SIMD groups hold matrices: threads beyond an edge or returned ones would be holes in them.
inline bool whole(const softmetal::Meeting& meeting) {
  return meeting.lanes == 0xFFFFFFFFu;
}
}  // namespace _msl

namespace metal {
template <typename T, int Columns, int Rows = Columns>
class simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup matrices are 8 by 8");
  static_assert(is_floating_point_v<T>, "simdgroup matrices hold float, half or bfloat");

 public:
  simdgroup_matrix() { __builtin_memset(&elements_, 0xFF, sizeof(elements_)); }
  explicit simdgroup_matrix(T diagonal) {
    const unsigned lane = _msl::softmetal_engine->current->thread_index_in_simdgroup;
    for (unsigned i = 0; i < 2; ++i) {
      const bool on = _msl::matrix_row(lane) == _msl::matrix_column(lane) + i;
      elements_[i] = on ? diagonal : static_cast<T>(0);
    }
  }
  thread vec<T, 2>& thread_elements() { return elements_; }
  thread const vec<T, 2>& thread_elements() const { return elements_; }

 private:
  vec<T, 2> elements_;
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int Columns, int Rows>
simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(_msl::same_t<T> value) {
  simdgroup_matrix<T, Columns, Rows> result;
  result.thread_elements()[0] = value;
  result.thread_elements()[1] = value;
  return result;
}

#define MSL_MATRIX_MEMORY(space)                                                                  \
  template <typename T>                                                                           \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8>& matrix, const space T* from,              \
                      ulong elements_per_row = 8, ulong2 origin = ulong2(0),                      \
                      bool transpose = false, _msl::Here here = _msl::Here()) {                   \
    const _msl::Lanes<char> lanes(0, "simdgroup_load", here);                                     \
    const ulong row = _msl::matrix_row(lanes.self), column = _msl::matrix_column(lanes.self);     \
    for (ulong i = 0; i < 2; ++i) {                                                               \
      const ulong r = transpose ? column + i : row, c = transpose ? row : column + i;             \
      matrix.thread_elements()[i] = from[(origin[1] + r) * elements_per_row + origin[0] + c];     \
      if (!_msl::whole(lanes.meeting)) __builtin_memset(&matrix, 0xFF, sizeof(matrix));           \
    }                                                                                             \
  }                                                                                               \
  template <typename T>                                                                           \
  void simdgroup_store(simdgroup_matrix<T, 8, 8> matrix, space T* to, ulong elements_per_row = 8, \
                       ulong2 origin = ulong2(0), bool transpose = false,                         \
                       _msl::Here here = _msl::Here()) {                                          \
    const _msl::Lanes<char> lanes(0, "simdgroup_store", here);                                    \
    const ulong row = _msl::matrix_row(lanes.self), column = _msl::matrix_column(lanes.self);     \
    for (ulong i = 0; i < 2; ++i) {                                                               \
      const ulong r = transpose ? column + i : row, c = transpose ? row : column + i;             \
      to[(origin[1] + r) * elements_per_row + origin[0] + c] = matrix.thread_elements()[i];       \
    }                                                                                             \
  }
MSL_MATRIX_MEMORY(device)
#ifdef MSL_STRICT
MSL_MATRIX_MEMORY(threadgroup)
#endif
#undef MSL_MATRIX_MEMORY

// d = a b + c
template <typename D, typename A, typename B, typename C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c,
                                   _msl::Here here = _msl::Here()) {
  static_assert(is_same_v<C, D>, "the sum has the type of what is added");
  _msl::Pairs<A, B> mine;
  for (int i = 0; i < 2; ++i) {
    mine.a.value[i] = a.thread_elements()[i];
    mine.b.value[i] = b.thread_elements()[i];
  }
  const _msl::Lanes<_msl::Pairs<A, B>> lanes(mine, "simdgroup_multiply_accumulate", here);
  float left[8][8], right[8][8];
  for (unsigned lane = 0; lane < softmetal::kSimdWidth; ++lane) {
    const _msl::Pairs<A, B> theirs = lanes[lane];
    for (unsigned i = 0; i < 2; ++i) {
      left[_msl::matrix_row(lane)][_msl::matrix_column(lane) + i] = theirs.a.value[i];
      right[_msl::matrix_row(lane)][_msl::matrix_column(lane) + i] = theirs.b.value[i];
    }
  }
  const unsigned row = _msl::matrix_row(lanes.self), column = _msl::matrix_column(lanes.self);
  for (unsigned i = 0; i < 2; ++i) {
    float sum = c.thread_elements()[i];
    for (unsigned k = 0; k < 8; ++k) sum += left[row][k] * right[k][column + i];
    d.thread_elements()[i] = static_cast<D>(sum);
  }
}
template <typename D, typename A, typename B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                        simdgroup_matrix<B, 8, 8> b, _msl::Here here = _msl::Here()) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(static_cast<D>(0)),
                                here);
}
}  // namespace metal
