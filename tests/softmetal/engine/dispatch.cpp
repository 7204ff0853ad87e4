#include "engine/dispatch.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "engine/counts.h"

namespace softmetal {
namespace {

enum Code { kPageFault = 3, kInvalidResource = 9 };

std::string of(const Binding& binding) {
  const char* what = binding.space == kThreadgroup ? "threadgroup(" : "buffer(";
  return std::string(what) + std::to_string(binding.index) + ") '" + binding.name + "'";
}

std::string check_buffer(const Binding& binding, const Bound& bound) {
  const std::string name = of(binding);
  if (!bound) return name + " is not bound";
  if (bound.offset > bound.memory->bytes()) {
    return name + " begins at byte " + std::to_string(bound.offset) + " of a buffer of " +
           std::to_string(bound.memory->bytes());
  }
  const std::size_t left = bound.memory->bytes() - bound.offset;
  if (left < binding.size) {
    return name + " needs " + std::to_string(binding.size) + " bytes and has " +
           std::to_string(left);
  }
  const auto constant = static_cast<unsigned>(settings().constant_alignment);
  const unsigned alignment =
      binding.space == kConstant ? std::max(binding.alignment, constant) : binding.alignment;
  if (bound.offset % alignment != 0) {
    return name + " has offset " + std::to_string(bound.offset) + ", which is no multiple of " +
           std::to_string(alignment);
  }
  return "";
}

std::string check_sizes(const Dispatch& d) {
  std::size_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (d.group[i] == 0 || (d.grid[i] == 0 && !d.indirect_groups)) return "a size is 0";
    threads *= d.group[i];
  }
  if (threads > d.pipeline->max_threads) {
    return "a threadgroup of " + std::to_string(threads) + " threads; the pipeline takes " +
           std::to_string(d.pipeline->max_threads);
  }
  std::size_t memory = d.pipeline->threadgroup_bytes();
  for (const std::size_t length : d.threadgroup_lengths) memory += (length + 15) / 16 * 16;
  const auto most = static_cast<std::size_t>(settings().threadgroup_memory);
  if (memory > most) {
    return "threadgroup memory of " + std::to_string(memory) + " bytes; there are " +
           std::to_string(most);
  }
  return "";
}

// One dispatch on its way: its arguments, and which of its threadgroups come next.
class Run {
 public:
  explicit Run(const Dispatch& dispatch) : dispatch_(dispatch) {
    grid_ = dispatch.grid;
    if (dispatch.indirect_groups) {
      std::array<std::uint32_t, 3> groups;
      std::memcpy(groups.data(),
                  dispatch.indirect_groups.memory->data() + dispatch.indirect_groups.offset, 12);
      for (int i = 0; i < 3; ++i) grid_[i] = groups[i] * dispatch.group[i];
    }
    for (int i = 0; i < 3; ++i) {
      groups_[i] = (grid_[i] + dispatch.group[i] - 1) / dispatch.group[i];
    }
    for (unsigned i = 0; i < kBufferCount; ++i) {
      const Bound& bound = dispatch.buffers[i];
      addresses_[i] = bound ? bound.memory->data() + bound.offset : nullptr;
    }
  }

  std::size_t count() const { return groups_[0] * groups_[1] * groups_[2]; }

  // Puts this dispatch's arguments and constants in place, unless they are.
  void enter(Threadgroup& group) const {
    const Pipeline& pipeline = *dispatch_.pipeline;
    ThreadgroupMemory& memory = group.memory();
    memory.clear();
    std::size_t variables = 0;
    for (const Variable* v = pipeline.kernel->variables_begin; v != pipeline.kernel->variables_end;
         ++v, ++variables) {
      memory.reserve(v->size, v->alignment);
    }
    std::vector<int> threadgroup_buffers(kBufferCount, -1);
    for (unsigned i = 0; i < kBufferCount; ++i) {
      if (dispatch_.threadgroup_lengths[i] == 0) continue;
      threadgroup_buffers[i] = static_cast<int>(memory.count());
      memory.reserve(dispatch_.threadgroup_lengths[i], 16);
    }
    group.set_arguments(addresses_.data(), threadgroup_buffers, variables);
    std::copy(pipeline.constants.begin(), pipeline.constants.end(),
              pipeline.library->tables->constant_values);
  }

  Failure run(Threadgroup& group, std::size_t index, Order order, std::mt19937_64& random) const {
    ThreadgroupShape shape;
    const std::size_t at[3] = {index % groups_[0], index / groups_[0] % groups_[1],
                               index / (groups_[0] * groups_[1])};
    for (int i = 0; i < 3; ++i) {
      shape.position[i] = static_cast<unsigned>(at[i]);
      shape.groups[i] = static_cast<unsigned>(groups_[i]);
      shape.grid[i] = static_cast<unsigned>(grid_[i]);
      shape.full_size[i] = static_cast<unsigned>(dispatch_.group[i]);
      shape.size[i] = static_cast<unsigned>(
          std::min(dispatch_.group[i], grid_[i] - at[i] * dispatch_.group[i]));
    }
    Failure failure = group.run(*dispatch_.pipeline->kernel, shape, order, random);
    if (!failure) return failure;
    const int signal = group.fault().signal;
    if (failure.code == kPageFault && (signal == SIGSEGV || signal == SIGBUS)) {
      failure.message += touched(group);
    }
    failure.message =
        "kernel " + std::string(dispatch_.pipeline->kernel->name) + ": " + failure.message;
    return failure;
  }

  // Whether something outside of the buffers was written.
  Failure check() const {
    for (const Bound& bound : dispatch_.buffers) {
      if (!bound) continue;
      const std::string byte = bound.memory->check();
      if (byte.empty()) continue;
      return {kPageFault, "kernel " + std::string(dispatch_.pipeline->kernel->name) + ": byte " +
                              byte + " was written of a buffer of " +
                              std::to_string(bound.memory->bytes()) + " bytes"};
    }
    return {};
  }

 private:
  std::string touched(const Threadgroup& group) const {
    const std::uintptr_t address = group.fault().address;
    if (group.memory_near(address)) return " touched threadgroup memory beyond its end";
    for (unsigned i = 0; i < dispatch_.pipeline->kernel->binding_count; ++i) {
      const Binding& binding = dispatch_.pipeline->kernel->bindings[i];
      if (binding.space == kThreadgroup) continue;
      const Bound& bound = dispatch_.buffers[binding.index];
      std::int64_t byte = 0;
      if (!bound || !bound.memory->near(address, &byte)) continue;
      return " touched byte " + std::to_string(byte) + " of " + of(binding) + ", a buffer of " +
             std::to_string(bound.memory->bytes()) + " bytes";
    }
    return " touched an address that belongs to no buffer, or is misaligned";
  }

  const Dispatch& dispatch_;
  Size3 grid_ = {}, groups_ = {};
  std::array<void*, kBufferCount> addresses_ = {};
};

Failure check_owners(const std::vector<Dispatch>& dispatches) {
  for (const Dispatch& dispatch : dispatches) {
    if (!dispatch.needs_owners) continue;
    for (const Bound& bound : dispatch.buffers) {
      if (bound && bound.memory->released) {
        return {kInvalidResource,
                "a buffer was released while a command buffer without retained"
                " references, or an indirect command, used it"};
      }
    }
  }
  return {};
}

// Calls `go(run, threadgroup)` for all threadgroups of all dispatches, until it fails.
template <typename Go>
Failure in_order(const std::vector<Run>& runs, std::mt19937_64& random, Go go) {
  if (settings().order == Order::kShuffle) {
    std::vector<std::pair<std::size_t, std::size_t>> mixed;
    for (std::size_t run = 0; run < runs.size(); ++run) {
      for (std::size_t g = 0; g < runs[run].count(); ++g) mixed.emplace_back(run, g);
    }
    std::shuffle(mixed.begin(), mixed.end(), random);
    for (const auto& [run, group] : mixed) {
      if (Failure failure = go(run, group)) return failure;
    }
    return {};
  }
  const bool reverse =
      settings().order == Order::kReverse || settings().order == Order::kEagerReverse;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const std::size_t run = reverse ? runs.size() - 1 - r : r, count = runs[run].count();
    for (std::size_t g = 0; g < count; ++g) {
      if (Failure failure = go(run, reverse ? count - 1 - g : g)) return failure;
    }
  }
  return {};
}

}  // namespace

std::size_t Pipeline::threadgroup_bytes() const {
  std::size_t bytes = 0;
  for (const Variable* v = kernel->variables_begin; v != kernel->variables_end; ++v) {
    bytes += (v->size + 15) / 16 * 16;
  }
  return bytes;
}

std::string Pipeline::key() const {
  std::string key = library->key + " " + kernel->name + " " + settings().os + ", Apple" +
                    std::to_string(settings().family) + (indirect ? ", indirect" : "") + " ";
  for (const unsigned char byte : constants) {
    key += "0123456789abcdef"[byte >> 4];
    key += "0123456789abcdef"[byte & 15];
  }
  return key;
}

std::string check_dispatch(const Dispatch& dispatch) {
  const Kernel& kernel = *dispatch.pipeline->kernel;
  std::string wrong = check_sizes(dispatch);
  for (unsigned i = 0; wrong.empty() && i < kernel.binding_count; ++i) {
    const Binding& binding = kernel.bindings[i];
    if (binding.space != kThreadgroup) {
      wrong = check_buffer(binding, dispatch.buffers[binding.index]);
    } else if (dispatch.threadgroup_lengths[binding.index] < binding.size) {
      wrong = of(binding) + " needs setThreadgroupMemoryLength";
    }
  }
  return wrong.empty() ? "" : "kernel " + std::string(kernel.name) + ": " + wrong;
}

Failure run_dispatches(const std::vector<Dispatch>& dispatches) {
  static auto* group = new Threadgroup;
  watch_faults();
  if (Failure failure = check_owners(dispatches)) return failure;
  std::mt19937_64 random(settings().seed);
  const std::vector<Run> runs(dispatches.begin(), dispatches.end());
  std::size_t entered = runs.size();
  const TimeLimit limit(settings().timeout_s);
  Failure failure = in_order(runs, random, [&](std::size_t run, std::size_t index) {
    if (run != entered) runs[run].enter(*group);
    entered = run;
    return runs[run].run(*group, index, settings().order, random);
  });
  if (failure) return failure;
  count_runs(settings().order, static_cast<long>(runs.size()));
  for (const Run& run : runs) {
    if (Failure failure = run.check()) return failure;
  }
  return {};
}

}  // namespace softmetal
