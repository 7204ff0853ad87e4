#include "cpp/device_code/kernel_store.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "cpp/cpu/check.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/metadata.h"

namespace npusim {
namespace {

constexpr size_t kMostMade = size_t{64} << 20;  // bytes of images

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void append(std::string& to, std::span<const std::byte> bytes) {
  to += std::to_string(bytes.size()) + ":";
  to.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// The code a program brings for a command; empty where it brings none.
std::span<const std::byte> brought(const Kernel& kernel, const Command& command) {
  if (!kernel.image.empty()) return kernel.image;
  const auto found =
      std::find_if(kernel.specialized.begin(), kernel.specialized.end(),
                   [&](const Specialized& code) { return same(code.params, command.params); });
  return found == kernel.specialized.end() ? std::span<const std::byte>() : found->image;
}

}  // namespace

// Code that has to be made, and the commands that wait for it.
struct KernelStore::Missing {
  std::string key;
  const Kernel* kernel;
  std::span<const std::byte> params;
  std::vector<size_t> commands;
};

std::string KernelStore::key_of(const Kernel& kernel, std::span<const std::byte> params) const {
  std::string key;
  append(key, std::as_bytes(std::span(kernel.name)));
  append(key, std::as_bytes(std::span(kernel.schema)));
  append(key, params);
  append(key, image_header(kernel.specialized.front().image, format_.kind));
  return key;
}

void KernelStore::check_target(const Program& program, const Method& method) const {
  std::string lacking;
  for (const Command& command : method.commands) {
    const Kernel& kernel = program.kernels[command.kernel];
    const bool one = !kernel.image.empty() || kernel.specialized.empty();
    const std::span<const std::byte> code = one ? kernel.image : kernel.specialized.front().image;
    const bool none = code.empty() || is_for_another_device(code, format_.kind);
    if (none && lacking.find(kernel.name) == lacking.npos) {
      lacking += (lacking.empty() ? "" : ", ") + std::string(kernel.name);
    }
  }
  if (lacking.empty()) return;
  throw Error(ErrorCode::kVersion,
              "the program was compiled for target " + std::string(program.target) +
                  " and has no " + std::string(format_.kind.name) + " code for: " + lacking +
                  ". Compile the model with target='" + std::string(format_.target) + "'.");
}

// Code for the sizes of a call is made from parameters that came from a file: the kernels of the
// CPU, which have the same ones, prove that they stay inside their operands.
void KernelStore::check_sizes(const Program& program, const Method& method) const {
  std::map<uint32_t, std::optional<int64_t>> counts;  // of operands, where a kernel says
  for (const Command& command : method.commands) {
    const Kernel& kernel = program.kernels[command.kernel];
    if (kernel.specialized.empty()) continue;
    const auto [count, fresh] = counts.try_emplace(command.kernel);
    if (fresh && format_.operands != nullptr) {
      const std::string what = "kernel " + std::string(kernel.name);
      count->second = format_.operands(kernel.specialized.front().image, what);
    }
    size_t own = command.operands.size();
    if (count->second) own = std::min(own, static_cast<size_t>(*count->second));
    cpu::check_command(program, method, command, command.operands.first(own));
  }
}

std::vector<KernelCode> KernelStore::codes(const std::shared_ptr<const Program>& program,
                                           const Method& method) {
  check_target(*program, method);
  check_sizes(*program, method);
  std::vector<KernelCode> codes;
  std::vector<Missing> missing;
  for (size_t i = 0; i < method.commands.size(); ++i) {
    const Command& command = method.commands[i];
    const Kernel& kernel = program->kernels[command.kernel];
    codes.push_back({brought(kernel, command), program});
    if (!codes.back().image.empty()) continue;
    const std::string key = key_of(kernel, command.params);
    codes.back() = kept(key);
    if (!codes.back().image.empty()) continue;
    auto known = std::find_if(missing.begin(), missing.end(),
                              [&](const Missing& other) { return other.key == key; });
    if (known == missing.end()) {
      known = missing.insert(known, {key, &kernel, command.params, {}});
    }
    known->commands.push_back(i);
  }
  if (!missing.empty()) make(*program, method, missing, codes);
  return codes;
}

void KernelStore::make(const Program& program, const Method& method, std::vector<Missing>& missing,
                       std::vector<KernelCode>& codes) {
  std::vector<WantedKernel> wanted;
  for (const Missing& one : missing) {
    const std::span<const std::byte> like = one.kernel->specialized.front().image;
    wanted.push_back({one.kernel->name, one.kernel->schema, one.params, like});
  }
  MadeKernels made;
  if (make_) {
    made = make_(wanted);
  } else {
    made.failure = "compile it with these sizes (npusim.compile(…, sizes=…))";
  }
  if (!made.failure.empty() || made.images.size() != wanted.size()) {
    const std::string prepared = prepared_sizes(program, method.name);
    throw Error(ErrorCode::kDevice, "the program has no device code for these sizes" +
                                        (prepared.empty() ? "" : ", but for " + prepared) + "; " +
                                        made.failure);
  }
  for (size_t i = 0; i < missing.size(); ++i) {
    const KernelCode code = keep(missing[i].key, std::move(made.images[i]));
    for (const size_t command : missing[i].commands) codes[command] = code;
  }
}

KernelCode KernelStore::kept(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = made_.find(key);
  if (found == made_.end()) return {};
  found->second.used = ++uses_;
  return {*found->second.image, found->second.image};
}

// What two threads made at once is kept once.
KernelCode KernelStore::keep(const std::string& key, std::vector<std::byte> image) {
  const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(image));
  const std::lock_guard lock(mutex_);
  const auto [entry, fresh] = made_.try_emplace(key, Made{owner, 0});
  entry->second.used = ++uses_;
  const KernelCode code{*entry->second.image, entry->second.image};
  if (fresh) made_bytes_ += owner->size();
  while (made_bytes_ > kMostMade && made_.size() > 1) {
    const auto oldest = std::min_element(
        made_.begin(), made_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    made_bytes_ -= oldest->second.image->size();
    made_.erase(oldest);
  }
  return code;
}

void KernelStore::keep_loaded(const KernelCode& code, std::shared_ptr<const void> loaded) {
  const std::lock_guard lock(mutex_);
  const auto made = std::find_if(made_.begin(), made_.end(), [&](const auto& entry) {
    return entry.second.image == code.owner;
  });
  if (made != made_.end()) made->second.loaded = std::move(loaded);
}

}  // namespace npusim
