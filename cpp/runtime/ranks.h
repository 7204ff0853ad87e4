// Several ranks on one host as one Device: what a program that is split among ranks runs on.
//
// All ranks run the same commands, each over memory of its own on a device of its own. A range of
// this device's memory is a handle with as many bytes on every rank; where ranks may share bytes
// that the host has (inputs, constants, weights that all have whole), it is an address of the host.
// Between stretches of commands stands `all_gather`, which brings a tensor of each rank to all of
// them: nobody goes on before all have arrived, and a rank that fails ends the run for all.
//
// So sessions, states, weights and executors know nothing of ranks: what they write is written on
// every rank, what they read is rank 0's, and only the loader asks for other bytes on each
// (allocate_parts).
#pragma once

#include <memory>

#include "cpp/runtime/ranked_device.h"
#include "cpp/runtime/thread_pool.h"

namespace npusim {

// The ranks run on `pool` at once as far as it has workers, else in turn; which it is changes no
// bit. `devices`, one a rank, are synchronous and know memory by addresses of the host.
std::shared_ptr<Device> ranks_on_host(RankDevices devices, std::shared_ptr<ThreadPool> pool,
                                      Interruption interruption);

}  // namespace npusim
