// Loads the code of many kernels: the driver takes a good third of a millisecond for each, and
// takes several at a time.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "cpp/cuda/module.h"

namespace npusim::cuda {

// One kernel's code to load; `what` names it in errors.
struct ModuleOrder {
  const Image* image;
  std::string what;
  std::unique_ptr<Module> module = nullptr;  // once loaded
};

// Fills in all modules. The context must be current. Throws as Module, what the first order that
// fails throws.
void load_modules(const std::shared_ptr<const Context>& context,
                  std::span<const std::string> folders, std::span<ModuleOrder> orders);

}  // namespace npusim::cuda
