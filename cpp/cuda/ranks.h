// Several ranks on CUDA devices as one Device: each rank's commands are a graph of its own on its
// own device, exchanges included (exchange.h). One thread starts them all: a launch does not wait.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/cuda/command_list.h"
#include "cpp/cuda/context.h"
#include "cpp/runtime/ranked_device.h"

namespace npusim::cuda {

// Makes the list of a rank's commands.
using EncodeRank = std::function<std::unique_ptr<CudaCommandList>(
    size_t rank, std::shared_ptr<const Program>, const Method&, Seat)>;

// The first of ordinals that are named. Throws as rank_ordinals does for a text that is none.
int first_ordinal(const std::string& named);
// The ordinals of so many ranks' devices: those in `named` ("2,3"; one may be named twice, for
// tests), or from `first` on. Throws Error(kDevice) for a text that is none, with both numbers for
// one of another number of ranks, and where the machine's `devices` are fewer.
std::vector<int> rank_ordinals(const std::string& named, int first, int ranks, int devices);

// `devices` are those of `contexts`, by rank; NCCL may lie in `folders`. Throws Error(kDevice)
// where they cannot work together.
std::shared_ptr<Device> ranks_on_devices(RankDevices devices, Contexts contexts,
                                         std::vector<std::string> folders, EncodeRank encode);

}  // namespace npusim::cuda
