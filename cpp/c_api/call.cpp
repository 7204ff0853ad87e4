#include "cpp/c_api/call.h"

#include <algorithm>
#include <new>
#include <utility>

namespace npusim::c_api {
namespace {

constexpr size_t kMostStruct = 4096;  // of any header: what says more was not set

thread_local std::string last_error;
thread_local const char* shown_error = "";

void set_last_error(const char* message) noexcept {
  try {
    last_error = message;
    shown_error = last_error.c_str();
  } catch (...) {
    shown_error = "the host is out of memory";
  }
}

static_assert(static_cast<int>(ErrorCode::kFormat) + NPUSIM_ERROR_FORMAT == NPUSIM_ERROR_FORMAT);
static_assert(static_cast<int>(ErrorCode::kInput) + NPUSIM_ERROR_FORMAT == NPUSIM_ERROR_INPUT);
static_assert(static_cast<int>(ErrorCode::kIo) + NPUSIM_ERROR_FORMAT == NPUSIM_ERROR_IO);

}  // namespace

npusim_status status_of(ErrorCode code) {
  return static_cast<npusim_status>(code) + NPUSIM_ERROR_FORMAT;
}

npusim_status caught() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(error.what());
    return status_of(error.code());
  } catch (const Failure& failure) {
    set_last_error(failure.what());
    return failure.status();
  } catch (const std::bad_alloc&) {
    set_last_error("the host is out of memory");
    return NPUSIM_ERROR_MEMORY;
  } catch (const std::length_error&) {
    set_last_error("more was asked for than memory can hold");
    return NPUSIM_ERROR_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
  } catch (...) {
    set_last_error("something was thrown that is no exception");
  }
  return NPUSIM_ERROR_INTERNAL;
}

size_t checked_size(const void* given, size_t known, size_t alignment, const char* name) {
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size > sizeof size && size <= kMostStruct && size % alignment == 0) return size;
  throw Failure(NPUSIM_ERROR_STRUCT, std::string(name) + " says that its struct_size is " +
                                         std::to_string(size) + "; this library's has " +
                                         std::to_string(known) + " bytes. Set it to sizeof.");
}

void require_zero_tail(const void* given, size_t size, size_t known, const char* name) {
  if (size <= known) return;
  const auto* bytes = static_cast<const unsigned char*>(given);
  if (std::all_of(bytes + known, bytes + size, [](unsigned char b) { return b == 0; })) return;
  throw Failure(NPUSIM_ERROR_STRUCT,
                std::string(name) +
                    " sets fields that this library does not know, as its header is "
                    "newer: install npusim of that header's version");
}

void throw_cancelled(const char* by) {
  throw Failure(NPUSIM_ERROR_CANCELLED, std::string("the call was ended: ") + by);
}

std::shared_ptr<const void> owner_of(npusim_release release, void* context) {
  static const char kAnything = 0;
  return {&kAnything, [release, context](const void*) {
            if (release == nullptr) return;
            try {
              release(context);
            } catch (...) {
              // Nobody is there to be told; the memory is the caller's again all the same.
            }
          }};
}

}  // namespace npusim::c_api

using namespace npusim::c_api;

uint32_t npusim_abi_version(void) {
  return NPUSIM_ABI_VERSION;
}

const char* npusim_version(void) {
  return NPUSIM_VERSION;
}

const char* npusim_status_name(npusim_status status) {
  constexpr const char* kNames[] = {"NPUSIM_OK",
                                    "NPUSIM_ERROR_FORMAT",
                                    "NPUSIM_ERROR_VERSION",
                                    "NPUSIM_ERROR_WEIGHTS",
                                    "NPUSIM_ERROR_INPUT",
                                    "NPUSIM_ERROR_DEVICE",
                                    "NPUSIM_ERROR_LIMIT",
                                    "NPUSIM_ERROR_DATA",
                                    "NPUSIM_ERROR_BUSY",
                                    "NPUSIM_ERROR_IO",
                                    "NPUSIM_ERROR_HANDLE",
                                    "NPUSIM_ERROR_STRUCT",
                                    "NPUSIM_ERROR_MEMORY",
                                    "NPUSIM_ERROR_CANCELLED",
                                    "NPUSIM_ERROR_UNSUPPORTED",
                                    "NPUSIM_ERROR_INTERNAL"};
  const bool known = status >= 0 && status < static_cast<npusim_status>(std::size(kNames));
  return known ? kNames[status] : "unknown status";
}

const char* npusim_last_error(void) {
  return shown_error;
}
