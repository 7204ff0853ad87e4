#include "cpp/platform/file.h"

#include <algorithm>

#include "cpp/platform/windows/windows_headers.h"

namespace npusim::platform {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;
// Others may go on using the file, and give its name to another: as on POSIX.
constexpr DWORD kShared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

void tell(std::error_code& error, bool failed) noexcept {
  error = failed ? std::error_code(static_cast<int>(GetLastError()), std::system_category())
                 : std::error_code();
}

HANDLE raw(intptr_t handle) noexcept {
  return reinterpret_cast<HANDLE>(handle);
}

DWORD at_most(size_t bytes) noexcept {
  return static_cast<DWORD>(std::min(bytes, kMostAtOnce));
}

}  // namespace

// FILE_FLAG_BACKUP_SEMANTICS: folders open too, and are refused for what they are.
File File::open(const std::filesystem::path& path, std::error_code& error) noexcept {
  const HANDLE opened = CreateFileW(path.c_str(), GENERIC_READ, kShared, nullptr, OPEN_EXISTING,
                                    FILE_FLAG_BACKUP_SEMANTICS, nullptr);
  tell(error, opened == INVALID_HANDLE_VALUE);
  return File(reinterpret_cast<intptr_t>(opened));
}

File File::create(const std::filesystem::path& path, std::error_code& error) noexcept {
  const HANDLE made = CreateFileW(path.c_str(), GENERIC_WRITE | DELETE, kShared, nullptr,
                                  CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr);
  tell(error, made == INVALID_HANDLE_VALUE);
  return File(reinterpret_cast<intptr_t>(made));
}

FileState File::state(std::error_code& error) const noexcept {
  BY_HANDLE_FILE_INFORMATION facts{};
  const bool disk = GetFileType(raw(handle_)) == FILE_TYPE_DISK;
  const bool failed = disk && GetFileInformationByHandle(raw(handle_), &facts) == 0;
  tell(error, failed);
  if (failed || !disk) return {};
  const auto joined = [](DWORD high, DWORD low) { return uint64_t{high} << 32 | low; };
  const bool folder = (facts.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
  // Of 100 ns.
  const uint64_t ticks =
      joined(facts.ftLastWriteTime.dwHighDateTime, facts.ftLastWriteTime.dwLowDateTime);
  return {folder ? FileKind::kFolder : FileKind::kRegular,
          static_cast<int64_t>(joined(facts.nFileSizeHigh, facts.nFileSizeLow)),
          static_cast<int64_t>(ticks / 10'000'000), static_cast<int64_t>(ticks % 10'000'000 * 100),
          joined(facts.nFileIndexHigh, facts.nFileIndexLow)};
}

size_t File::read(std::span<std::byte> to, std::error_code& error) const noexcept {
  DWORD count = 0;
  tell(error, ReadFile(raw(handle_), to.data(), at_most(to.size()), &count, nullptr) == 0);
  return count;
}

size_t File::write(std::span<const std::byte> from, std::error_code& error) const noexcept {
  DWORD count = 0;
  tell(error, WriteFile(raw(handle_), from.data(), at_most(from.size()), &count, nullptr) == 0);
  return count;
}

void File::flush(std::error_code& error) const noexcept {
  tell(error, FlushFileBuffers(raw(handle_)) == 0);
}

void File::close() noexcept {
  if (is_open()) CloseHandle(raw(handle_));
  handle_ = kNone;
}

std::string path_text(const std::filesystem::path& path) {
  const std::u8string text = path.u8string();
  return {text.begin(), text.end()};
}

std::filesystem::path path_of(std::string_view text) {
  return std::u8string(text.begin(), text.end());
}

}  // namespace npusim::platform
