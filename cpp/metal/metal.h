// Apple's metal-cpp, and what all of this folder takes of it. metal-cpp is a wrapper of Metal's
// Objective-C interface; its implementation is in metal_cpp.cpp alone.
#pragma once

#include <Metal/Metal.hpp>
#include <string>

namespace npusim::metal {

template <typename Object>
using Owned = NS::SharedPtr<Object>;

// What is autoreleased while it lives is let go of at its end; each call into this folder has one.
class Pool {
 public:
  Pool() : pool_(NS::AutoreleasePool::alloc()->init()) {}
  ~Pool() { pool_->release(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  NS::AutoreleasePool* pool_;
};

inline std::string text_of(const NS::String* string) {
  const char* text = string == nullptr ? nullptr : string->utf8String();
  return text == nullptr ? "" : text;
}
// What an error says; there is always something.
inline std::string text_of(const NS::Error* error) {
  const std::string text = error == nullptr ? "" : text_of(error->localizedDescription());
  return text.empty() ? "no reason was given" : text;
}
// Autoreleased.
inline NS::String* string_of(const std::string& text) {
  return NS::String::string(text.c_str(), NS::UTF8StringEncoding);
}

}  // namespace npusim::metal
