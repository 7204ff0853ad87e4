#include "cpp/platform/forks.h"

namespace npusim::platform {

constinit std::atomic<uint32_t> fork_count{0};  // processes are not copied here

}  // namespace npusim::platform
