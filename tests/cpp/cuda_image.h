// Images of CUDA kernels, made by hand.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace npusim::tests {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// What passes for a cubin with the stub driver: an ELF header and the names of the functions.
inline std::string stub_cubin(const std::string& functions) {
  std::string cubin(64, '\0');
  std::memcpy(cubin.data(),
              "\x7f"
              "ELF\x02",
              5);
  cubin[18] = static_cast<char>(190);
  return cubin + functions + ".";
}

inline Bytes image_of(const std::string& header, const std::string& blobs) {
  std::string text = "NPUCUDA\x01";
  for (int shift = 0; shift < 32; shift += 8) {
    text += static_cast<char>(header.size() >> shift & 0xFF);
  }
  return bytes_of_text(text + header + blobs);
}

// A launch of `threads` threads of the stub's function `entry`; `more` is put into the header.
inline Bytes stub_image(const std::string& entry, int64_t threads, const std::string& more = "",
                        const std::string& arch = "sm_90") {
  const std::string cubin = stub_cubin(entry);
  return image_of(R"({"arch": ")" + arch + R"(", "launches": [{"entry": ")" + entry +
                      R"(", "grid": [)" + std::to_string(threads) +
                      R"(, 1, 1], "block": [1, 1, 1], "shared": 0}], "cubin": [0, )" +
                      std::to_string(cubin.size()) + "]" + more + "}",
                  cubin);
}

}  // namespace npusim::tests
