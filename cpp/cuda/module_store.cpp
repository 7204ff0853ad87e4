#include "cpp/cuda/module_store.h"

#include <mutex>

namespace npusim::cuda {

std::shared_ptr<const Module> ModuleStore::known(const KernelCode& code) {
  const auto found = modules_.find(code.image.data());
  return found == modules_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<const Module> ModuleStore::module(const std::shared_ptr<const Context>& context,
                                                  const KernelCode& code, const Image& image,
                                                  std::span<const std::string> folders,
                                                  const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    if (auto found = known(code)) return found;
  }
  // It keeps the bytes it was loaded from, so that nothing else comes to lie there.
  struct Loaded {
    Loaded(const std::shared_ptr<const Context>& context, const KernelCode& code,
           const Image& image, std::span<const std::string> folders, const std::string& what)
        : owner(code.owner), module(context, image, folders, what) {}
    std::shared_ptr<const void> owner;
    Module module;
  };
  const auto loaded = std::make_shared<const Loaded>(context, code, image, folders, what);
  const std::shared_ptr<const Module> module(loaded, &loaded->module);
  {
    const std::lock_guard lock(mutex_);
    if (auto found = known(code)) return found;
    std::erase_if(modules_, [](const auto& entry) { return entry.second.expired(); });
    modules_[code.image.data()] = module;
  }
  kernels_.keep_loaded(code, module);
  return module;
}

}  // namespace npusim::cuda
