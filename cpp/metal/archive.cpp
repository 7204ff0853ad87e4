#include "cpp/metal/archive.h"

#include <fstream>
#include <iterator>
#include <random>
#include <system_error>
#include <vector>

#include "cpp/device_code/cache_folder.h"
#include "cpp/runtime/atomic_file.h"
#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr const char* kForm = "pipelines, form 1";
constexpr std::uintmax_t kMostBytes = std::uintmax_t{256} << 20;

using std::filesystem::path;

// The system with its build, as a new one brings another compiler and other drivers.
std::string system_name() {
  return text_of(NS::ProcessInfo::processInfo()->operatingSystemVersionString());
}

std::string architecture_of(const Context& context) {
  const auto* const architecture = context.device().architecture();
  return architecture == nullptr ? "" : text_of(architecture->name());
}

// Nothing for what is no file, or too much.
std::string content_of(const path& file) {
  std::error_code failure;
  if (!std::filesystem::is_regular_file(file, failure) ||
      std::filesystem::file_size(file, failure) > kMostBytes || failure) {
    return "";
  }
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

path name_of(const std::string& content) {
  return cache_key(std::span(&content, 1)) + ".archive";
}

std::vector<path> files_in(const path& folder) {
  std::vector<path> files;
  std::error_code failure;
  std::filesystem::directory_iterator next(folder, failure);
  for (; !failure && next != std::filesystem::directory_iterator(); next.increment(failure)) {
    if (next->path().extension() == ".archive") files.push_back(next->path());
  }
  return files;
}

void drop(const path& file) {
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
}

// A file that nobody else has, removed at the end.
class Temporary {
 public:
  explicit Temporary(const path& folder) {
    std::random_device random;
    path_ = folder / ("." + std::to_string(random()) + std::to_string(random()) + ".tmp");
  }
  ~Temporary() { drop(path_); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const path& at() const noexcept { return path_; }

 private:
  path path_;
};

NS::URL* url_of(const path& file) {
  return NS::URL::fileURLWithPath(string_of(file.string()));
}

}  // namespace

PipelineArchive::PipelineArchive(const Context& context, std::span<const std::string> parts)
    : context_(context), folder_(cache_folder("metal")) {
  if (folder_.empty()) return;
  const Pool pool;
  std::vector<std::string> all = {kForm, context.name(), architecture_of(context), context.arch(),
                                  system_name()};
  all.insert(all.end(), parts.begin(), parts.end());
  folder_ = folder_ / "pipelines" / cache_key(all);
}

Owned<MTL::BinaryArchive> PipelineArchive::read(const path& file) const {
  const std::string content = content_of(file);
  if (content.empty() || name_of(content) != file.filename()) return {};
  const auto descriptor = NS::TransferPtr(MTL::BinaryArchiveDescriptor::alloc()->init());
  descriptor->setUrl(url_of(file));
  NS::Error* error = nullptr;
  return NS::TransferPtr(context_.device().newBinaryArchive(descriptor.get(), &error));
}

Owned<MTL::BinaryArchive> PipelineArchive::find() const {
  if (folder_.empty()) return {};
  const Pool pool;
  for (const path& file : files_in(folder_)) {
    if (auto archive = read(file)) return archive;
  }
  return {};
}

Owned<MTL::BinaryArchive> PipelineArchive::begin() const {
  if (folder_.empty()) return {};
  const Pool pool;
  const auto descriptor = NS::TransferPtr(MTL::BinaryArchiveDescriptor::alloc()->init());
  NS::Error* error = nullptr;
  return NS::TransferPtr(context_.device().newBinaryArchive(descriptor.get(), &error));
}

// A full or read-only disk costs the next process a compilation, nothing more.
void PipelineArchive::keep(MTL::BinaryArchive& archive) const {
  const Pool pool;
  std::error_code failure;
  std::filesystem::create_directories(folder_, failure);
  if (failure) return;
  const Temporary written(folder_);
  NS::Error* error = nullptr;
  if (!archive.serializeToURL(url_of(written.at()), &error)) return;
  const std::string content = content_of(written.at());
  if (content.empty()) return;
  const std::vector<path> before = files_in(folder_);
  const path file = folder_ / name_of(content);
  try {
    AtomicFile whole(file);
    whole.write(std::as_bytes(std::span(content)));
    whole.commit();
  } catch (const Error&) {
    return;
  }
  for (const path& old : before) {
    if (old != file) drop(old);
  }
}

}  // namespace npusim::metal
