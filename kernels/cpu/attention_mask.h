// Adds a mask to the scores of many query rows, whose lanes are rows: once for all dtypes that the
// rows themselves may have.
#pragma once

#include "kernels/cpu/attention_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

// A vector of rows, and the keys from one on.
struct MaskedScores {
  const void* mask;
  int32_t dtype;
  int64_t step;         // from key to key, in elements
  int64_t at[kLanes];   // of each row's first key
  int64_t count, keys;  // rows there are
  float* scores;        // [keys][lanes], of the first row
  int64_t lanes;

  void add(int64_t key, Vec value) const {
    float* to = scores + key * lanes;
    store(to, load(to) + value);
  }
};

// Whether all keys are shown to all rows.
inline bool shows_all(const MaskedScores& s) {
  constexpr int64_t kBytes = 4 * kLanes;
  using Bytes = VectorOf<uint8_t, kBytes>;
  typename Bytes::type hidden{};
  for (int64_t i = 0; i < s.count; ++i) {
    const auto* row = static_cast<const boolean*>(s.mask) + s.at[i];
    int64_t j = 0;
    for (; j + kBytes <= s.keys; j += kBytes) {
      const auto v = *reinterpret_cast<const typename Bytes::unaligned*>(&row[j].value);
      hidden |= reinterpret_cast<typename Bytes::type>(v == 0);
    }
    for (; j < s.keys; ++j) {
      if (row[j].value == 0) return false;
    }
  }
  static constexpr uint8_t kNone[kBytes] = {};
  return std::memcmp(&hidden, kNone, sizeof hidden) == 0;
}

[[gnu::noinline]] inline void add_mask(const MaskedScores& s) {
  const bool shows = s.dtype == static_cast<int32_t>(abi::DType::kBool);
  if (shows && s.step == 1 && shows_all(s)) return;
  with_mask_type(s.dtype, [&]<typename M>(M) {
    const M* mask = static_cast<const M*>(s.mask);
    if (s.step != 1) {
      for (int64_t j = 0; j < s.keys; ++j) {
        Vec values{};
        for (int64_t i = 0; i < s.count; ++i) values[i] = mask_value(mask[s.at[i] + j * s.step]);
        s.add(j, values);
      }
      return;
    }
    for (int64_t j = 0; j < s.keys; j += kLanes) {
      Vec square[kLanes] = {};
      for (int64_t i = 0; i < s.count; ++i) {
        square[i] = mask_lanes(mask + s.at[i] + j, s.keys - j);
      }
      transpose(square);
      for (int64_t i = 0; i < std::min<int64_t>(kLanes, s.keys - j); ++i) s.add(j + i, square[i]);
    }
  });
}

// One mask for all lanes, whose first element is at `at`.
[[gnu::noinline]] inline void add_shared_mask(MaskedScores s, int64_t at) {
  with_mask_type(s.dtype, [&]<typename M>(M) {
    const M* mask = static_cast<const M*>(s.mask) + at;
    for (int64_t j = 0; j < s.keys; ++j, s.scores += s.lanes) {
      const float value = mask_value(mask[j * s.step]);
      if (value == 0) continue;
      for (int64_t row = 0; row < s.lanes; row += kLanes) {
        store(s.scores + row, load(s.scores + row) + value);
      }
    }
  });
}

}  // namespace npusim::cpu::NPUSIM_ISA
