// The rates that this machine reaches with some threads: what a profile's commands are held to.
#pragma once

#include <vector>

#include "cpp/cpu/isa.h"
#include "cpp/runtime/device.h"
#include "cpp/runtime/thread_pool.h"

namespace npusim::cpu {

// Takes about half a second, and 256 MiB meanwhile. Throws Error(kDevice) when there is no memory.
std::vector<MeasuredRate> measure_rates(const Isa& isa, ThreadPool& pool);

}  // namespace npusim::cpu
