// Reading the taps of a position of bytes that do not lie in whole quads: one row of an indirect
// GEMM, copied pixel by pixel or line by line.
#pragma once

#include "kernels/cpu/conv_rows.h"

namespace npusim::cpu::NPUSIM_ISA {

// Copies the first and the last bytes of a line, which overlap, as wholes of T.
template <typename T>
inline void copy_ends(const uint8_t* from, int64_t n, uint8_t* to) {
  T first, last;
  std::memcpy(&first, from, sizeof first);
  std::memcpy(&last, from + n - sizeof last, sizeof last);
  std::memcpy(to, &first, sizeof first);
  std::memcpy(to + n - sizeof last, &last, sizeof last);
}

// Lines of a few pixels are copied without a call.
inline void copy_bytes(const uint8_t* from, int64_t n, uint8_t* to) {
  struct Half {
    uint64_t words[2];
  };
  if (n >= 16 && n <= 32) return copy_ends<Half>(from, n, to);
  if (n >= 8 && n < 16) return copy_ends<uint64_t>(from, n, to);
  if (n >= 4 && n < 8) return copy_ends<uint32_t>(from, n, to);
  std::copy_n(from, n, to);
}

struct RowGatherer {
  const abi::ConvInt8Params& p;
  const Axis (&axes)[3];
  int64_t channels;  // of a group
  uint8_t outside;   // what lies outside the input

  // Writes the taps of the positions of a line, each `width` bytes after the one before.
  void gather(const uint8_t* image, const Positions& at, int64_t width, uint8_t* to) const {
    const int64_t line = p.kernel[2] * channels;
    for (int64_t i = 0; i < p.kernel[0]; ++i) {
      const int64_t z = axes[0].base[i] + at.d * p.stride[0];
      for (int64_t j = 0; j < p.kernel[1]; ++j, to += line) {
        const int64_t y = axes[1].base[j] + at.h * p.stride[1];
        if (inside(z, p.in_size[0]) && inside(y, p.in_size[1])) {
          gather_lines(image + z * p.x_strides[2] + y * p.x_strides[3], at, width, to);
        } else {
          for (int64_t r = 0; r < at.line(); ++r) std::fill_n(to + r * width, line, outside);
        }
      }
    }
  }

 private:
  // Of one line of the input: what each position reads of it. Sizes are held apart from memory that
  // stores of bytes could change.
  void gather_lines(const uint8_t* from, const Positions& at, int64_t width, uint8_t* to) const {
    const bool dense = p.x_strides[1] == 1 && p.x_strides[4] == channels && p.dilation[2] == 1;
    const int64_t step = p.stride[2], pixel = channels, line = p.kernel[2] * channels;
    const int64_t last = dense ? p.in_size[2] - p.kernel[2] : -1;
    int64_t w = at.w * step - p.pad[2];
    for (int64_t r = 0, count = at.line(); r < count; ++r, w += step, to += width) {
      if (w >= 0 && w <= last) {
        copy_bytes(from + w * pixel, line, to);
      } else {
        gather_line(from, w, to);
      }
    }
  }
  void gather_line(const uint8_t* line, int64_t w, uint8_t* to) const {
    for (int64_t k = 0; k < p.kernel[2]; ++k, w += p.dilation[2], to += channels) {
      if (!inside(w, p.in_size[2])) {
        std::fill_n(to, channels, outside);
        continue;
      }
      const uint8_t* pixel = line + w * p.x_strides[4];
      if (p.x_strides[1] == 1) {
        std::copy_n(pixel, channels, to);
      } else {
        for (int64_t c = 0; c < channels; ++c) to[c] = pixel[c * p.x_strides[1]];
      }
    }
  }
};

}  // namespace npusim::cpu::NPUSIM_ISA
