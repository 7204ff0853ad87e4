#include "cpp/platform/forks.h"

#include <pthread.h>

namespace npusim::platform {

constinit std::atomic<uint32_t> fork_count{0};

namespace {

[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });

}  // namespace
}  // namespace npusim::platform
