// What every function of the C interface does: it finds objects behind handles, reads structs of
// callers that were built with another header, and turns whatever is thrown into a status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cpp/c_api/handles.h"
#include "cpp/platform/file.h"
#include "cpp/runtime/error.h"
#include "include/npusim/npusim.h"

namespace npusim::c_api {

// What npusim::Error has no code for.
class Failure : public std::runtime_error {
 public:
  Failure(npusim_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}
  npusim_status status() const noexcept { return status_; }

 private:
  npusim_status status_;
};

npusim_status status_of(ErrorCode code);
// The status of the exception that is being handled; its message becomes the thread's last error.
npusim_status caught() noexcept;

template <typename Action>
npusim_status guarded(const Action& action) noexcept {
  try {
    action();
    return NPUSIM_OK;
  } catch (...) {
    return caught();
  }
}

// ---- handles

template <typename Handle>
auto object(const Handle* handle) {
  using Object = typename ObjectOf<Handle>::type;
  auto found = find_object(reinterpret_cast<uintptr_t>(handle), ObjectOf<Handle>::kKind);
  if (found) return std::static_pointer_cast<Object>(found);
  throw Failure(NPUSIM_ERROR_HANDLE,
                std::string("the ") + ObjectOf<Handle>::kName + " handle is " +
                    (handle == nullptr ? "null" : "none, of another type, or was freed"));
}
template <typename Handle>
auto object_or_null(const Handle* handle) {
  return handle == nullptr ? nullptr : object(handle);
}

// Writes a new handle of the object to where the caller wants it.
template <typename Handle, typename Object>
void give(Handle** out, std::shared_ptr<Object> made) {
  static_assert(std::is_same_v<Object, typename ObjectOf<Handle>::type>);
  *out = reinterpret_cast<Handle*>(add_object(ObjectOf<Handle>::kKind, std::move(made)));
}
template <typename Handle>
void free_handle(Handle* handle) noexcept {
  drop_object(reinterpret_cast<uintptr_t>(handle), ObjectOf<Handle>::kKind);
}

// ---- arguments

template <typename T>
void require(const T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(ErrorCode::kInput, std::string(name) + " is null");
}
// Elements of the caller; null for none.
template <typename T>
std::span<T> elements(T* first, size_t count, const char* name) {
  constexpr size_t kMost = size_t{1} << 40;
  if (count > 0) require(first, name);
  if (count > kMost / sizeof(T)) {
    throw Error(ErrorCode::kInput, std::string(name) + " has an absurd number of elements");
  }
  return {first, count};
}
inline std::string text_or_empty(const char* text) {
  return text == nullptr ? "" : text;
}
inline std::string text(const char* given, const char* name) {
  require(given, name);
  return given;
}

// Paths of the C interface are UTF-8 on every system.
inline std::filesystem::path path_argument(const char* given) {
  return platform::path_of(text(given, "path"));
}

// The size that a caller's struct says it has. Throws Failure for one that no header ever had.
size_t checked_size(const void* given, size_t known, size_t alignment, const char* name);
// Throws Failure where bytes behind those that are known here are not zero.
void require_zero_tail(const void* given, size_t size, size_t known, const char* name);

// A caller's struct, whatever header it was built with; zeros where there is none.
template <typename Struct>
Struct read_struct(const Struct* given, const char* name) {
  Struct known{};
  if (given == nullptr) return known;
  const size_t size = checked_size(given, sizeof(Struct), alignof(Struct), name);
  std::memcpy(&known, given, size < sizeof(Struct) ? size : sizeof(Struct));
  require_zero_tail(given, size, sizeof(Struct), name);
  return known;
}
// Fills a caller's struct as far as it goes.
template <typename Struct>
void write_struct(Struct* out, Struct value, const char* name) {
  require(out, name);
  const size_t size = checked_size(out, sizeof(Struct), alignof(Struct), name);
  value.struct_size = size;
  if (size > sizeof(Struct)) std::memset(out, 0, size);
  std::memcpy(out, &value, size < sizeof(Struct) ? size : sizeof(Struct));
}
// Structs that lie as far apart as the first one says.
template <typename Struct>
std::vector<Struct> read_structs(const Struct* first, size_t count, const char* name) {
  std::vector<Struct> out;
  if (count == 0) return out;
  require(first, name);
  if (count > size_t{1} << 24) {
    throw Error(ErrorCode::kInput, std::string(name) + " has an absurd number of elements");
  }
  const size_t size = checked_size(first, sizeof(Struct), alignof(Struct), name);
  const auto* at = reinterpret_cast<const std::byte*>(first);
  for (size_t i = 0; i < count; ++i, at += size) {
    out.push_back(read_struct(reinterpret_cast<const Struct*>(at), name));
    if (out.back().struct_size != size) {
      throw Failure(NPUSIM_ERROR_STRUCT, std::string(name) + ": element " + std::to_string(i) +
                                             " says another struct_size than the first");
    }
  }
  return out;
}

// ---- callbacks

[[noreturn]] void throw_cancelled(const char* by);

// What a callback returns; an exception that leaves it ends the call.
template <typename Function, typename... Arguments>
auto call_back(Function function, const Arguments&... arguments) {
  try {
    return function(arguments...);
  } catch (...) {
    throw_cancelled("a callback threw an exception");
  }
}
// Asks, where there is somebody to ask.
inline void stop_if(npusim_should_cancel asked, void* context) {
  if (asked != nullptr && call_back(asked, context) != 0)
    throw_cancelled("a callback asked for it");
}

// Calls a caller's `release` when the last owner goes.
std::shared_ptr<const void> owner_of(npusim_release release, void* context);

}  // namespace npusim::c_api
