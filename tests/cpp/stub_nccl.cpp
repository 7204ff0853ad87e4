// NCCL without a GPU, for tests: gathers over the stub driver when a group ends, as it has to be
// called: by every rank once in a group. STUB_NCCL_VERSION is its version; STUB_NCCL_FAIL is the
// number of the group that fails, from 1 on, and 0 has it refuse the devices. STUB_NCCL_WRONG
// spoils what it brings. It does nothing where multicast was not switched off before it was loaded,
// and nothing with memory of a pool, which is no peer's.
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "tests/cpp/stub_library.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using npusim::tests::environment_number;
using npusim::tests::host_floats;
using npusim::tests::is_pooled;

constexpr int kUnhandled = 1, kInternal = 3, kInvalidUsage = 5;

struct Gather {
  const void* from;
  void* to;
  size_t bytes;
};
struct Group {
  int ranks;
  std::vector<Gather> gathers;  // of the ranks that have come
};
struct Communicator {
  Group* group;
  int rank;
};

Group* put_in = nullptr;  // what the group that is open has; null: nothing yet
bool open = false;

bool is_set(const char* name, std::string_view wanted) {
  const char* value = std::getenv(name);
  return value != nullptr && value == wanted;
}
const bool careful = is_set("NCCL_NVLS_ENABLE", "0");

void run(const std::vector<Gather>& gathers) {
  for (const Gather& to : gathers) {
    for (size_t rank = 0; rank < gathers.size(); ++rank) {
      std::memmove(reinterpret_cast<std::byte*>(host_floats(to.to)) + rank * to.bytes,
                   host_floats(gathers[rank].from), to.bytes);  // from its own place
    }
    if (environment_number("STUB_NCCL_WRONG", 0) != 0) ++*host_floats(to.to);
  }
}

}  // namespace

EXPORT int ncclGetVersion(int* version) {
  *version = static_cast<int>(environment_number("STUB_NCCL_VERSION", 22803));
  return careful ? 0 : kInvalidUsage;
}
EXPORT const char* ncclGetErrorString(int status) {
  return status == kUnhandled ? "unhandled cuda error" : "the stub was called as it must not be";
}
EXPORT int ncclCommInitAll(Communicator** made, int count, const int* ordinals) {
  if (environment_number("STUB_NCCL_FAIL", -1) == 0) return kUnhandled;
  auto* group = new Group{count, {}};
  for (int rank = 0; rank < count; ++rank) {
    for (int other = 0; other < rank; ++other) {
      if (ordinals[other] == ordinals[rank]) return kInvalidUsage;
    }
    made[rank] = new Communicator{group, rank};
  }
  return 0;
}
EXPORT int ncclCommDestroy(Communicator* communicator) {
  delete communicator;
  return 0;
}
EXPORT int ncclCommAbort(Communicator* communicator) {
  delete communicator;
  return 0;
}
EXPORT int ncclCommGetAsyncError(Communicator*, int* status) {
  *status = 0;
  return 0;
}
EXPORT int ncclGroupStart() {
  if (open) return kInvalidUsage;
  open = true;
  return 0;
}
EXPORT int ncclAllGather(const void* from, void* to, size_t count, int type,
                         Communicator* communicator, void*) {
  Group* group = communicator->group;
  const bool in_turn = communicator->rank == static_cast<int>(group->gathers.size());
  if (!open || type != 0 || !in_turn || is_pooled(from) || is_pooled(to)) return kInvalidUsage;
  put_in = group;
  group->gathers.push_back({from, to, count});
  return 0;
}
EXPORT int ncclGroupEnd() {
  static int groups = 0;
  if (!open || put_in == nullptr) return kInvalidUsage;
  open = false;
  if (static_cast<int>(put_in->gathers.size()) != put_in->ranks) return kInternal;
  const std::vector<Gather> gathers = std::move(put_in->gathers);
  put_in->gathers.clear();
  put_in = nullptr;
  if (++groups == environment_number("STUB_NCCL_FAIL", -1)) return kUnhandled;
  npusim::tests::enqueue([gathers] { run(gathers); });
  return 0;
}
