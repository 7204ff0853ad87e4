#include "cpp/cuda/load_modules.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace npusim::cuda {
namespace {

constexpr size_t kOrdersPerThread = 4;  // fewer are not worth starting one
constexpr size_t kMostThreads = 8;

}  // namespace

void load_modules(const std::shared_ptr<const Context>& context,
                  std::span<const std::string> folders, std::span<ModuleOrder> orders) {
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> failed(orders.size());
  const auto work = [&] {
    const Current current(*context);
    for (size_t i; (i = next.fetch_add(1)) < orders.size();) {
      try {
        orders[i].module =
            std::make_unique<Module>(context, *orders[i].image, folders, orders[i].what);
      } catch (...) {
        failed[i] = std::current_exception();
      }
    }
  };
  const size_t cores = std::max<size_t>(std::thread::hardware_concurrency(), 1);
  const size_t wanted = std::min({orders.size() / kOrdersPerThread, kMostThreads, cores});
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < wanted; ++i) threads.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& failure : failed) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace npusim::cuda
