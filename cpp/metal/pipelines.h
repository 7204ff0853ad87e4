// The code of kernels on a device: texts in the Metal Shading Language, compiled once each, and a
// pipeline for each of their entries, whose machine code is kept for other processes.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cpp/metal/context.h"
#include "cpp/metal/image.h"

namespace npusim::metal {

// An entry of a text. `buffers` is how many it takes: one more than its greatest index.
struct Pipeline {
  Owned<MTL::ComputePipelineState> state;
  size_t buffers = 0;
  bool threadgroup_memory = false;  // takes some at index 0
};

// A compiled text. Immutable.
class Library {
 public:
  // `what` names the kernel in messages. Throws Error(kFormat) for a damaged text and an entry it
  // does not have, Error(kDevice) when Metal's compiler refuses it: the text is then left in a file
  // that the message names.
  Library(const Context& context, std::span<const std::byte> source,
          std::span<const std::string> entries, const std::string& what);

  bool has(const std::string& entry) const { return pipelines_.contains(entry); }
  // Of an entry it was made for.
  const Pipeline& pipeline(const std::string& entry) const {
    return pipelines_.find(entry)->second;
  }

 private:
  enum class Source : uint8_t { kArchive, kText };  // of a pipeline's code

  void add_pipelines(const Context& context, MTL::Library& library,
                     std::span<const std::string> entries);
  bool add_pipeline(const Context& context, MTL::Library& library, const std::string& entry,
                    MTL::BinaryArchive* archive, Source source);
  void read_bindings(MTL::ComputePipelineReflection& reflection, const std::string& entry,
                     Pipeline& pipeline) const;
  [[noreturn]] void refuse(const std::string& why) const;

  std::string what_, text_;  // the text only while it is compiled
  std::map<std::string, Pipeline> pipelines_;
};

// An image whose code is wanted.
struct WantedLibrary {
  const Image* image;
  std::string what;  // names the kernel in messages
};

// The libraries of a device; those in use are found by their text.
class Pipelines {
 public:
  // The library of each image, in order; fresh ones are compiled side by side. Throws
  // Error(kVersion) for code that this device cannot run, else as Library, what comes first in
  // order.
  std::vector<std::shared_ptr<const Library>> load(const Context& context,
                                                   std::span<const WantedLibrary> wanted);

 private:
  std::shared_ptr<const Library> known(const Image& image);

  std::mutex mutex_;  // never held while a text is compiled
  std::map<std::string, std::weak_ptr<const Library>> libraries_;  // by compressed text
};

}  // namespace npusim::metal
