#include "cpp/platform/memory.h"

#include <malloc.h>

#include <cstring>

#include "cpp/platform/windows/windows_headers.h"

namespace npusim::platform {

size_t page_bytes() noexcept {
  SYSTEM_INFO facts{};
  GetSystemInfo(&facts);
  return facts.dwPageSize;
}

uint64_t machine_bytes() noexcept {
  MEMORYSTATUSEX facts{};
  facts.dwLength = sizeof facts;
  return GlobalMemoryStatusEx(&facts) == 0 ? UINT64_MAX : facts.ullTotalPhys;
}

void* take_pages(size_t bytes) noexcept {
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void release_pages(void* pages, size_t) noexcept {
  VirtualFree(pages, 0, MEM_RELEASE);
}

// Large pages need a right that few accounts have, and cannot be had afterwards.
void prefer_huge_pages(void*, size_t) noexcept {}

void* take_aligned(size_t alignment, size_t bytes) noexcept {
  void* const block = _aligned_malloc(bytes, alignment);
  if (block != nullptr) std::memset(block, 0, bytes);
  return block;
}

void release_aligned(void* block) noexcept {
  _aligned_free(block);
}

void* map_file(const File& file, size_t bytes, std::error_code& error) noexcept {
  void* start = nullptr;
  error.clear();
  const HANDLE map = CreateFileMappingW(reinterpret_cast<HANDLE>(file.handle()), nullptr,
                                        PAGE_READONLY, 0, 0, nullptr);
  if (map != nullptr) start = MapViewOfFile(map, FILE_MAP_READ, 0, 0, bytes);
  if (start == nullptr) error.assign(static_cast<int>(GetLastError()), std::system_category());
  if (map != nullptr) CloseHandle(map);  // the view keeps what it needs
  return start;
}

void unmap_file(void* start, size_t) noexcept {
  UnmapViewOfFile(start);
}

// Unlocking pages that were not locked takes them out of the working set.
void leave_pages(void* pages, size_t bytes) noexcept {
  VirtualUnlock(pages, bytes);
}

}  // namespace npusim::platform
