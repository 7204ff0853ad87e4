// Compiled pipelines on disk: for the entries of a text a binary archive of Metal's in the cache
// folder (cache_folder.h), which holds what the device executes. Whoever can write there decides
// what runs on the device.
//
// An archive is a file under the key of all that its content depends on, and is named by its
// content: what was written in part, or changed, is found to be so before Metal reads it.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "cpp/metal/context.h"

namespace npusim::metal {

class PipelineArchive {
 public:
  // `parts` tell what it holds from all else that this device compiles.
  PipelineArchive(const Context& context, std::span<const std::string> parts);

  // What is kept; null where nothing is, or it is damaged, or Metal refuses it.
  Owned<MTL::BinaryArchive> find() const;
  // An empty one, to be filled; null where nothing can be kept.
  Owned<MTL::BinaryArchive> begin() const;
  // Keeps it in the place of all that there was; does nothing where the folder cannot be written.
  void keep(MTL::BinaryArchive& archive) const;

 private:
  Owned<MTL::BinaryArchive> read(const std::filesystem::path& file) const;

  const Context& context_;
  std::filesystem::path folder_;  // empty: there is no place for it
};

}  // namespace npusim::metal
