// How a command list is made: code compiled, arguments laid out, memory reserved, barriers placed.
#include <algorithm>
#include <map>

#include "cpp/metal/command_list.h"
#include "cpp/metal/hazards.h"
#include "cpp/runtime/error.h"
#include "cpp/runtime/place.h"

namespace npusim::metal {
namespace {

constexpr unsigned kSharedUnit = 16;  // bytes; the device takes threadgroup memory in whole ones
// With fewer launches, to name the memory of indirect commands takes as many calls.
constexpr size_t kFewestIndirect = 2;

std::string code_place(const Program& program, const Method& method, const Command& command) {
  return place_of(program, method, command) + ", kernel " +
         std::string(program.kernels[command.kernel].name);
}

MTL::Size size_of(const unsigned (&extent)[3]) {
  return {extent[0], extent[1], extent[2]};
}

}  // namespace

MetalCommandList::MetalCommandList(std::shared_ptr<const Context> context,
                                   std::shared_ptr<const Program> program, const Method& method,
                                   KernelStore& store, Pipelines& pipelines)
    : context_(std::move(context)), program_(std::move(program)), method_(method) {
  const std::vector<KernelCode> codes = store.codes(program_, method_);
  parse_images(codes);
  load_kernels(codes, store, pipelines);
  lay_out();
  reserve();
  bound_.resize(program_->buffers.size());
  const bool all_own =
      std::ranges::none_of(codes_, [](const Code& code) { return code.products != nullptr; });
  for (const Code& code : codes_) {
    if (code.image.batch > 0) batch_ = std::min(batch_, static_cast<size_t>(code.image.batch));
  }
  goes_indirect_ = context_->indirect() && launches_.size() >= kFewestIndirect && all_own &&
                   launches_.size() <= batch_;
}

// Parses the image of each command, once for all that have it.
void MetalCommandList::parse_images(const std::vector<KernelCode>& codes) {
  std::map<const std::byte*, size_t> known;
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto [entry, fresh] = known.try_emplace(codes[i].image.data(), codes_.size());
    code_of_.push_back(entry->second);
    if (!fresh) continue;
    const std::string what = code_place(*program_, method_, method_.commands[i]);
    codes_.push_back({parse_image(codes[i].image, what), codes[i].owner, nullptr, nullptr});
  }
  for (size_t i = 0; i < codes.size(); ++i) {
    load_products(method_.commands[i], codes_[code_of_[i]]);
  }
}

// Checks what an image says of MPS against the operands of each command that has it, also where
// the device has no MPS.
void MetalCommandList::load_products(const Command& command, Code& code) {
  if (!code.image.library) return;
  const std::string what = code_place(*program_, method_, command);
  std::vector<int64_t> bytes;
  for (const Operand& operand : command.operands) {
    bytes.push_back(program_->buffers[operand.buffer].bytes - operand.offset);
  }
  check_problem(*code.image.library, bytes, what);
  if (code.products == nullptr && context_->has_mps()) {
    const Pool pool;
    code.products = std::make_unique<MpsProducts>(&context_->device(), *code.image.library, what);
  }
}

// Compiles what has launches. Codes come in the order of their first commands.
void MetalCommandList::load_kernels(const std::vector<KernelCode>& codes, KernelStore& store,
                                    Pipelines& pipelines) {
  std::vector<WantedLibrary> wanted;
  std::vector<size_t> first;  // commands
  for (size_t i = 0, next = 0; i < codes.size(); ++i) {
    if (code_of_[i] != next) continue;
    const Image& image = codes_[next++].image;
    if (image.launches.empty()) continue;
    wanted.push_back({&image, code_place(*program_, method_, method_.commands[i])});
    first.push_back(i);
  }
  const auto libraries = pipelines.load(*context_, wanted);
  for (size_t i = 0; i < wanted.size(); ++i) {
    codes_[code_of_[first[i]]].library = libraries[i];
    store.keep_loaded(codes[first[i]], libraries[i]);
  }
}

// Gives every command its launches and its arguments: operands, scratch, failure.
void MetalCommandList::lay_out() {
  size_t argument = 0;
  for (size_t i = 0; i < method_.commands.size(); ++i) {
    const Command& command = method_.commands[i];
    const Code& code = codes_[code_of_[i]];
    const size_t arguments =
        command.operands.size() + (code.image.scratch > 0 ? 1 : 0) + (code.image.failure ? 1 : 0);
    if (arguments > kMostArguments) {
      throw Error(ErrorCode::kFormat, place_of(*program_, method_, command) +
                                          ": its kernel takes " + std::to_string(arguments) +
                                          " buffers, at most " + std::to_string(kMostArguments) +
                                          " are possible");
    }
    const size_t first_launch = launches_.size();
    add_launches(command, code, argument, arguments);
    steps_.push_back({.first_launch = first_launch,
                      .last_launch = launches_.size(),
                      .first_argument = argument,
                      .arguments = code.image.launches.empty() ? 0 : arguments,
                      .failure = code.image.failure ? failing_.add(i) : kNone});
    argument += steps_.back().arguments;
  }
  arguments_.resize(argument);
}

// Each launch of a command sees what those before it wrote.
void MetalCommandList::add_launches(const Command& command, const Code& code, size_t first,
                                    size_t arguments) {
  for (const ImageLaunch& launch : code.image.launches) {
    const Pipeline& pipeline = code.library->pipeline(launch.entry);
    if (pipeline.buffers > arguments) {
      throw Error(ErrorCode::kFormat, code_place(*program_, method_, command) + ": " +
                                          launch.entry + " takes " +
                                          std::to_string(pipeline.buffers) +
                                          " buffers, its command has " + std::to_string(arguments));
    }
    launches_.push_back({.pipeline = pipeline.state.get(),
                         .grid = size_of(launch.grid),
                         .block = size_of(launch.block),
                         .shared = (launch.shared + kSharedUnit - 1) / kSharedUnit * kSharedUnit,
                         .first_argument = first,
                         .arguments = arguments,
                         .barrier = &launch != code.image.launches.data()});
  }
}

// Barriers part commands with scratch, so one serves all; each has a failure of its own.
void MetalCommandList::reserve() {
  int64_t most = 0;
  for (const Code& code : codes_) most = std::max(most, code.image.scratch);
  if (most > 0) scratch_ = std::make_unique<MetalMemory>(context_, most, Reach::kDevice);
  if (!failing_.empty()) {
    failures_ = std::make_unique<MetalMemory>(context_, static_cast<int64_t>(failing_.bytes()));
  }
}

// Notes where each argument lies, and in which storages.
void MetalCommandList::place_arguments(size_t first, size_t last) {
  used_.clear();
  const auto place = [&](const MemoryRange& range, int64_t offset, bool writes) -> Argument {
    Storage& storage = storage_of(range);
    used_[&storage] |= writes;
    const NS::UInteger at = range.offset + static_cast<NS::UInteger>(offset);
    // An empty operand may lie behind the last byte, where the device takes none; nobody reads it.
    return {storage.buffer.get(), storage.serial, at < storage.buffer->length() ? at : 0};
  };
  for (size_t i = first; i < last; ++i) {
    const Step& step = steps_[i];
    if (step.arguments == 0) continue;
    size_t next = step.first_argument;
    for (const Operand& operand : method_.commands[i].operands) {
      const bool writes = operand.access != Access::kRead;
      arguments_[next++] = place(bound_[operand.buffer].range, operand.offset, writes);
    }
    if (codes_[code_of_[i]].image.scratch > 0)
      arguments_[next++] = place(scratch_->range(), 0, true);
    if (step.failure != kNone) {
      const auto offset = static_cast<int64_t>(KernelFailures::offset(step.failure));
      arguments_[next++] = place(failures_->range(), offset, true);
    }
  }
  resources_ = {};
  for (const auto& [storage, writes] : used_) {
    (writes ? resources_.written : resources_.read).push_back(storage->buffer.get());
  }
}

// A command may touch all of a buffer that it names: strides can be negative.
void MetalCommandList::place_barriers() {
  Hazards hazards;
  std::vector<Touched> effects;
  const auto touch = [&](const MemoryRange& range, bool written) {
    const Storage& storage = storage_of(range);
    const uintptr_t first =
        storage.is_private() ? range.offset : reinterpret_cast<uintptr_t>(host_of(range));
    effects.push_back({storage.is_private() ? storage.serial : 0, first,
                       first + static_cast<uintptr_t>(range.bytes), written});
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    effects.clear();
    if (steps_[i].first_launch == steps_[i].last_launch) continue;
    for (const Operand& operand : method_.commands[i].operands) {
      touch(bound_[operand.buffer].range, operand.access != Access::kRead);
    }
    if (codes_[code_of_[i]].image.scratch > 0) touch(scratch_->range(), true);
    launches_[steps_[i].first_launch].barrier = hazards.needs_barrier(effects);
  }
}

}  // namespace npusim::metal
