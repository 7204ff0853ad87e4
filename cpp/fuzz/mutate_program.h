// Mutations of .npubin files that keep the container sound most of the time, or the checksums would
// stop everything at the door. For fuzz targets: libFuzzer, or replay.cpp, has LLVMFuzzerMutate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "cpp/fuzz/npubin_image.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace npusim::tests {

constexpr uint32_t kParams = 9;  // the section that kernels go by

// Numbers at which sums, products and comparisons turn over; or a small one, perhaps an index.
inline uint64_t telling_number(std::mt19937& random) {
  constexpr uint64_t kNumbers[] = {
      0xFFFFFFFF,        uint64_t{1} << 32, uint64_t{1} << 40, (uint64_t{1} << 40) + 1,
      uint64_t{1} << 62, ~uint64_t{0},      uint64_t{1} << 63, ~uint64_t{63}};
  return random() % 2 == 0 ? kNumbers[random() % std::size(kNumbers)] : random() % 130;
}

// Overwrites one field of a table with a telling number.
inline void mutate_field(std::vector<std::byte>& bytes, std::mt19937& random) {
  const uint64_t value = telling_number(random);
  const size_t size = random() % 2 == 0 ? 4 : 8;
  if (bytes.size() < size) return;
  const size_t at = random() % (bytes.size() / size) * size;
  std::memcpy(&bytes[at], &value, size);
}

// Moves one field of a table a little, or to where another one is: what a loader may well accept.
inline void nudge_field(std::vector<std::byte>& bytes, std::mt19937& random) {
  const size_t size = random() % 2 == 0 ? 4 : 8;
  if (bytes.size() < size) return;
  const auto any = [&] { return random() % (bytes.size() / size) * size; };
  const size_t at = any();
  uint64_t value = 0;
  std::memcpy(&value, &bytes[random() % 4 == 0 ? any() : at], size);
  constexpr int64_t kSteps[] = {0, 1, -1, 2, -2, 8, -8, 64, -64};
  value += static_cast<uint64_t>(kSteps[random() % std::size(kSteps)]);
  if (random() % 8 == 0) value *= 2;
  std::memcpy(&bytes[at], &value, size);
}

// Lets libFuzzer change a few bytes in place, or the whole of a section, its size included.
inline void mutate_bytes(std::vector<std::byte>& bytes, std::mt19937& random) {
  const size_t size = bytes.size();
  auto* data = reinterpret_cast<uint8_t*>(bytes.data());
  if (random() % 2 == 0 && size != 0) {
    const size_t at = random() % size;
    const size_t length = std::min<size_t>(size - at, 1 + random() % 8);
    LLVMFuzzerMutate(data + at, length, length);
    return;
  }
  bytes.resize(size + 64);
  data = reinterpret_cast<uint8_t*>(bytes.data());
  bytes.resize(LLVMFuzzerMutate(data, size, bytes.size()));
}

// Changes the content of sections, or drops or repeats one; the places and sums stay right.
inline void mutate_sections(NpubinImage& image, std::mt19937& random) {
  for (size_t times = 1 + random() % 3; times != 0 && !image.sections.empty(); --times) {
    size_t index = random() % image.sections.size();
    if (const SectionImage* params = image.find(kParams); params && random() % 2 == 0) {
      index = static_cast<size_t>(params - image.sections.data());
    }
    switch (random() % 32) {
      case 0:
        image.sections.erase(image.sections.begin() + static_cast<ptrdiff_t>(index));
        break;
      case 1:
        image.sections.push_back(image.sections[index]);
        break;
      default:
        const uint32_t way = random() % 4;
        auto& bytes = image.sections[index].bytes;
        way < 2 ? nudge_field(bytes, random)
                : (way == 2 ? mutate_field(bytes, random) : mutate_bytes(bytes, random));
    }
  }
}

// A custom mutator of libFuzzer: the arguments and the result are those of LLVMFuzzerCustomMutator.
inline size_t mutate_program(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::mt19937 random(seed);
  auto image = NpubinImage::parse(std::as_bytes(std::span(data, size)));
  if (image && random() % 8 != 0) {
    mutate_sections(*image, random);
    const auto file = image->bytes();
    if (file.size() <= max_size) {
      std::memcpy(data, file.data(), file.size());
      return file.size();
    }
  }
  size = LLVMFuzzerMutate(data, size, max_size);
  if (random() % 4 != 0) NpubinImage::seal(std::as_writable_bytes(std::span(data, size)));
  return size;
}

}  // namespace npusim::tests
