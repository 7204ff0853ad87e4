// Memory as the operating system gives it: whole pages, maps of files, aligned blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/platform/file.h"

namespace npusim::platform {

size_t page_bytes() noexcept;
uint64_t machine_bytes() noexcept;  // of the memory of this machine

// Zeroed pages that take memory only where they are touched; null when the system refuses.
void* take_pages(size_t bytes) noexcept;
void release_pages(void* pages, size_t bytes) noexcept;
// Advice that all of these pages will be used.
void prefer_huge_pages(void* pages, size_t bytes) noexcept;

// Zeroed; `alignment` is a power of two that divides `bytes`. Null when there is no memory.
void* take_aligned(size_t alignment, size_t bytes) noexcept;
void release_aligned(void* block) noexcept;

// The first `bytes` > 0 of an open file, to read. Null when refused, and `error` says why.
void* map_file(const File& file, size_t bytes, std::error_code& error) noexcept;
void unmap_file(void* start, size_t bytes) noexcept;
// Advice that whole pages of a mapped file are not needed for now: who reads them again reads the
// file again.
void leave_pages(void* pages, size_t bytes) noexcept;

}  // namespace npusim::platform
