// Positions in batches of up to three-dimensional images, and the order in which threads take them.
#pragma once
#include "kernels/device/entry.h"

namespace npusim {

struct Pixel {
  int64_t n, c, d, h, w;
};

inline int64_t pixels(int64_t batch, int64_t channels, NPUSIM_CONSTANT const int64_t (&size)[3]) {
  return batch * channels * size[0] * size[1] * size[2];
}

// Item `i` of a batch: channels run fastest where kChannelsLast, else the width does.
template <bool kChannelsLast>
inline Pixel pixel_of(int64_t i, int64_t channels, NPUSIM_CONSTANT const int64_t (&size)[3]) {
  Pixel at{};
  if (kChannelsLast) {
    at.c = i % channels;
    i /= channels;
  }
  at.w = i % size[2];
  i /= size[2];
  at.h = i % size[1];
  i /= size[1];
  at.d = i % size[0];
  i /= size[0];
  if (!kChannelsLast) {
    at.c = i % channels;
    i /= channels;
  }
  at.n = i;
  return at;
}

inline int64_t offset_of(NPUSIM_THREAD const Pixel& at,
                         NPUSIM_CONSTANT const int64_t (&strides)[5]) {
  return at.n * strides[0] + at.c * strides[1] + at.d * strides[2] + at.h * strides[3] +
         at.w * strides[4];
}

}  // namespace npusim
