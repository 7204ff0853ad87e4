#include "cpp/metal/pipelines.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <system_error>
#include <thread>

#include "cpp/device_code/cache_folder.h"
#include "cpp/device_code/inflate.h"
#include "cpp/metal/archive.h"
#include "cpp/platform/cores.h"
#include "cpp/runtime/atomic_file.h"
#include "cpp/runtime/error.h"

namespace npusim::metal {
namespace {

constexpr size_t kMostSource = size_t{16} << 20;
constexpr size_t kMostMessage = 2000;  // bytes of what a compiler says
constexpr size_t kMostCompilers = 8;   // at once

std::string shortened(const std::string& message) {
  return message.size() <= kMostMessage ? message : message.substr(0, kMostMessage) + " …";
}

// Leaves a text where a person finds it, and says where that is.
std::string kept_text(const std::string& text) {
  const std::filesystem::path folder = cache_folder("metal");
  if (folder.empty()) return "no folder is known to keep the text in: set NPUSIM_CACHE_DIR";
  const std::string parts[] = {text};
  const std::filesystem::path path = folder / ("refused-" + cache_key(parts) + ".metal");
  try {
    std::error_code failure;
    std::filesystem::create_directories(folder, failure);
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  } catch (const Error& error) {
    return std::string("the text could not be kept: ") + error.what();
  }
  return "the text is in " + path.string();
}

constexpr const char* kCompileOptions = "MSL 3.1, precise";  // of keys: what follows, in words
Owned<MTL::CompileOptions> compile_options() {
  auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
  options->setLanguageVersion(MTL::LanguageVersion3_1);
  // Infinities and NaN are right, and sums stay in their order.
  options->setFastMathEnabled(false);
  return options;
}

std::string key_of(const Image& image) {
  return {reinterpret_cast<const char*>(image.source.data()), image.source.size()};
}

std::vector<std::string> entries_of(const Image& image) {
  std::vector<std::string> entries;
  for (const ImageLaunch& launch : image.launches) entries.push_back(launch.entry);
  return entries;
}

void check_arch(const Context& context, const WantedLibrary& wanted) {
  if (context.runs(wanted.image->arch)) return;
  const std::string own = context.family() == 0 ? "no GPU of Apple's" : context.arch();
  throw Error(ErrorCode::kVersion, wanted.what + ": it was compiled for " + wanted.image->arch +
                                       "; this device is " + own +
                                       ". Compile the model again for this device.");
}

// What the pipelines and the device allow.
void check_launches(const Context& context, const Library& library, const WantedLibrary& wanted) {
  for (const ImageLaunch& launch : wanted.image->launches) {
    const Pipeline& entry = library.pipeline(launch.entry);
    if (entry.threadgroup_memory && launch.shared == 0) {
      throw Error(ErrorCode::kFormat, wanted.what + ": " + launch.entry +
                                          " takes threadgroup memory, its launch gives none");
    }
    const MTL::ComputePipelineState& pipeline = *entry.state.get();
    const auto threads = static_cast<size_t>(launch.block[0]) * launch.block[1] * launch.block[2];
    const size_t most = pipeline.maxTotalThreadsPerThreadgroup();
    if (threads > most) {
      throw Error(ErrorCode::kVersion, wanted.what + ": it needs " + std::to_string(threads) +
                                           " threads a threadgroup, this device has " +
                                           std::to_string(most) + " for it");
    }
    const auto shared =
        static_cast<int64_t>(pipeline.staticThreadgroupMemoryLength()) + int64_t{launch.shared};
    if (shared > context.most_threadgroup_memory()) {
      throw Error(ErrorCode::kVersion, wanted.what + ": it needs " + std::to_string(shared) +
                                           " bytes of threadgroup memory, this device has " +
                                           std::to_string(context.most_threadgroup_memory()));
    }
  }
}

// Calls `work` with each index below `count`, on several threads, and throws what the first of them
// threw.
template <typename Work>
void side_by_side(size_t count, const Work& work) {
  std::vector<std::exception_ptr> thrown(count);
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  const size_t wanted = std::min({count, platform::usable_cores().size(), kMostCompilers});
  try {
    while (threads.size() + 1 < wanted) threads.emplace_back(run);
  } catch (const std::system_error&) {
    // Without more threads, this one does what is left.
  }
  run();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& one : thrown) {
    if (one) std::rethrow_exception(one);
  }
}

}  // namespace

Library::Library(const Context& context, std::span<const std::byte> source,
                 std::span<const std::string> entries, const std::string& what)
    : what_(what), text_(inflate(source, kMostSource, what)) {
  const Pool pool;
  const Owned<MTL::CompileOptions> options = compile_options();
  NS::Error* error = nullptr;
  const auto library =
      NS::TransferPtr(context.device().newLibrary(string_of(text_), options.get(), &error));
  if (!library) refuse("Metal's compiler refuses its text: " + shortened(text_of(error)));
  std::vector<std::string> names(entries.begin(), entries.end());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  add_pipelines(context, *library.get(), names);
  text_.clear();
  text_.shrink_to_fit();
}

// All from an archive, or all anew and into one: what an archive has not of its key is outdated.
void Library::add_pipelines(const Context& context, MTL::Library& library,
                            std::span<const std::string> entries) {
  std::vector<std::string> key = {kCompileOptions, context.indirect() ? "indirect" : "direct",
                                  text_};
  key.insert(key.end(), entries.begin(), entries.end());
  const PipelineArchive place(context, key);
  if (const auto kept = place.find()) {
    const auto found = [&](const std::string& entry) {
      return add_pipeline(context, library, entry, kept.get(), Source::kArchive);
    };
    if (std::all_of(entries.begin(), entries.end(), found)) return;
    pipelines_.clear();
  }
  const auto fresh = place.begin();
  bool whole = static_cast<bool>(fresh);
  for (const std::string& entry : entries) {
    whole = add_pipeline(context, library, entry, fresh.get(), Source::kText) && whole;
  }
  if (whole) place.keep(*fresh.get());
}

// Of what is compiled: whether the archive has it then; else, whether the archive has it.
bool Library::add_pipeline(const Context& context, MTL::Library& library, const std::string& entry,
                           MTL::BinaryArchive* archive, Source source) {
  const auto function = NS::TransferPtr(library.newFunction(string_of(entry)));
  if (!function) throw Error(ErrorCode::kFormat, what_ + ": its code has no " + entry);
  NS::Error* error = nullptr;
  MTL::ComputePipelineReflection* reflection = nullptr;  // autoreleased
  Pipeline pipeline;
  const auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
  descriptor->setComputeFunction(function.get());
  const NS::Object* const archives[] = {archive};
  if (archive != nullptr) descriptor->setBinaryArchives(NS::Array::array(archives, 1));
  bool has = false;
  const auto make = [&](bool indirect) {
    descriptor->setSupportIndirectCommandBuffers(indirect);
    MTL::PipelineOption wanted = MTL::PipelineOptionBindingInfo;
    if (source == Source::kArchive) wanted |= MTL::PipelineOptionFailOnBinaryArchiveMiss;
    // Metal compiles here, and finds it below.
    has = archive != nullptr && (source == Source::kArchive ||
                                 archive->addComputePipelineFunctions(descriptor.get(), &error));
    pipeline.state = NS::TransferPtr(
        context.device().newComputePipelineState(descriptor.get(), wanted, &reflection, &error));
  };
  make(context.indirect());
  if (!pipeline.state && context.indirect()) make(false);
  if (!pipeline.state && source == Source::kArchive) return false;
  if (!pipeline.state) {
    refuse("the device makes no pipeline of " + entry + ": " + shortened(text_of(error)));
  }
  if (reflection != nullptr) read_bindings(*reflection, entry, pipeline);
  pipelines_.emplace(entry, std::move(pipeline));
  return has;
}

void Library::read_bindings(MTL::ComputePipelineReflection& reflection, const std::string& entry,
                            Pipeline& pipeline) const {
  const NS::Array* const bindings = reflection.bindings();
  const NS::UInteger count = bindings == nullptr ? 0 : bindings->count();
  for (NS::UInteger i = 0; i < count; ++i) {
    const auto& binding = *bindings->object<MTL::Binding>(i);
    const NS::UInteger index = binding.index();
    if (binding.type() == MTL::BindingTypeBuffer) {
      pipeline.buffers = std::max<size_t>(pipeline.buffers, index + 1);
    } else if (binding.type() == MTL::BindingTypeThreadgroupMemory && index == 0) {
      pipeline.threadgroup_memory = true;
    } else {
      throw Error(ErrorCode::kFormat, what_ + ": " + entry + " takes " + text_of(binding.name()) +
                                          ", which is no buffer and no threadgroup memory at 0");
    }
  }
}

void Library::refuse(const std::string& why) const {
  throw Error(ErrorCode::kDevice, what_ + ": " + why + " (" + kept_text(text_) + ")");
}

std::shared_ptr<const Library> Pipelines::known(const Image& image) {
  const auto found = libraries_.find(key_of(image));
  std::shared_ptr<const Library> library =
      found == libraries_.end() ? nullptr : found->second.lock();
  const auto has = [&](const ImageLaunch& launch) { return library->has(launch.entry); };
  if (library && !std::all_of(image.launches.begin(), image.launches.end(), has)) return nullptr;
  return library;
}

std::vector<std::shared_ptr<const Library>> Pipelines::load(const Context& context,
                                                            std::span<const WantedLibrary> wanted) {
  std::vector<std::shared_ptr<const Library>> libraries(wanted.size());
  std::map<std::string, std::vector<size_t>> missing;  // by text
  for (const WantedLibrary& one : wanted) check_arch(context, one);
  {
    const std::lock_guard<std::mutex> locked(mutex_);
    for (size_t i = 0; i < wanted.size(); ++i) {
      libraries[i] = known(*wanted[i].image);
      if (!libraries[i]) missing[key_of(*wanted[i].image)].push_back(i);
    }
  }
  std::vector<const std::vector<size_t>*> groups;
  for (const auto& [text, group] : missing) groups.push_back(&group);
  std::sort(groups.begin(), groups.end(),
            [](const auto* a, const auto* b) { return a->front() < b->front(); });
  side_by_side(groups.size(), [&](size_t index) {
    std::vector<std::string> entries;
    for (const size_t i : *groups[index]) {
      const std::vector<std::string> own = entries_of(*wanted[i].image);
      entries.insert(entries.end(), own.begin(), own.end());
    }
    const WantedLibrary& first = wanted[groups[index]->front()];
    const auto made =
        std::make_shared<const Library>(context, first.image->source, entries, first.what);
    for (const size_t i : *groups[index]) libraries[i] = made;
  });
  {
    const std::lock_guard<std::mutex> locked(mutex_);
    std::erase_if(libraries_, [](const auto& entry) { return entry.second.expired(); });
    for (const auto& [text, group] : missing) libraries_[text] = libraries[group.front()];
  }
  for (size_t i = 0; i < wanted.size(); ++i) check_launches(context, *libraries[i], wanted[i]);
  return libraries;
}

}  // namespace npusim::metal
