#include "cpp/runtime/safetensors_header.h"

namespace npusim {
namespace {

// The name in the format's own terms.
std::string_view stored_dtype(DType dtype) {
  constexpr std::string_view kNames[] = {"F32", "F16", "BF16", "F64", "I64",
                                         "I32", "I16", "I8",   "U8",  "BOOL"};
  return kNames[static_cast<size_t>(dtype)];
}

std::string json_text(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (byte < 0x20) {
      out += std::string("\\u00") + kDigits[byte >> 4] + kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

SafetensorsHeader::SafetensorsHeader(
    std::span<const std::pair<std::string_view, std::string>> metadata)
    : text_("{\"__metadata__\":{") {
  for (const auto& [key, value] : metadata) {
    if (text_.back() != '{') text_ += ",";
    text_ += json_text(key) + ":" + json_text(value);
  }
  text_ += "}";
}

void SafetensorsHeader::add(std::string_view name, DType dtype, std::span<const int64_t> shape) {
  int64_t bytes = dtype_size(dtype);
  text_ += "," + json_text(name) + ":{\"dtype\":\"" + std::string(stored_dtype(dtype)) +
           "\",\"shape\":[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text_ += (i ? "," : "") + std::to_string(shape[i]);
    bytes *= shape[i];
  }
  text_ +=
      "],\"data_offsets\":[" + std::to_string(end_) + "," + std::to_string(end_ + bytes) + "]}";
  end_ += bytes;
}

void SafetensorsHeader::write(AtomicFile& file, size_t alignment) {
  text_ += "}";
  const size_t before = sizeof(uint64_t);
  text_.resize((before + text_.size() + alignment - 1) / alignment * alignment - before, ' ');
  const uint64_t length = text_.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(std::as_bytes(std::span(text_)));
}

}  // namespace npusim
