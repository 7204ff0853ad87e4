#include "cpp/platform/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace npusim::platform {

size_t page_bytes() noexcept {
  return static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

uint64_t machine_bytes() noexcept {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes();
}

void* take_pages(size_t bytes) noexcept {
  void* const pages =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

void release_pages(void* pages, size_t bytes) noexcept {
  ::munmap(pages, bytes);
}

void prefer_huge_pages([[maybe_unused]] void* pages, [[maybe_unused]] size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
  ::madvise(pages, bytes, MADV_HUGEPAGE);
#endif
}

void* take_aligned(size_t alignment, size_t bytes) noexcept {
  void* const block = std::aligned_alloc(alignment, bytes);
  if (block != nullptr) std::memset(block, 0, bytes);
  return block;
}

void release_aligned(void* block) noexcept {
  std::free(block);
}

void* map_file(const File& file, size_t bytes, std::error_code& error) noexcept {
  void* const start =
      ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, static_cast<int>(file.handle()), 0);
  error.clear();
  if (start != MAP_FAILED) return start;
  error.assign(errno, std::generic_category());
  return nullptr;
}

void unmap_file(void* start, size_t bytes) noexcept {
  ::munmap(start, bytes);
}

void leave_pages(void* pages, size_t bytes) noexcept {
  ::madvise(pages, bytes, MADV_DONTNEED);
}

}  // namespace npusim::platform
