// Launches that are encoded once and executed by any number of command buffers: what a method whose
// memory stays where it is costs the host is then naming its memory and a commit.
//
// Metal's rules, as its documentation has them: a pipeline says when it is made that indirect
// commands may use it; a command is reset before it is encoded anew, its barrier comes before its
// dispatch, and what runs is not changed; what commands touch is named to the encoder that executes
// them (useResource), with whether it is written; a range executed has at most 16,384 commands.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpp/metal/context.h"
#include "cpp/metal/encoding.h"

namespace npusim::metal {

// Memory that launches touch.
struct Resources {
  std::vector<MTL::Resource*> read, written;
};

class IndirectCommands {
 public:
  // For launches like these. Null where the device has none for them.
  static std::unique_ptr<IndirectCommands> make(const Context& context,
                                                std::span<const Launch> launches);

  // Whether it may be changed: what executes it has ended.
  bool is_idle(const Context& context) const { return context.queue().has_ended(last_run_); }
  // Whether it holds these launches with these arguments.
  bool holds(std::span<const Launch> launches, std::span<const Argument> arguments) const;
  // Encodes those that it does not hold. It has to be idle.
  void encode(std::span<const Launch> launches, std::span<const Argument> arguments);
  // Returns what has to live until the work has ended: it is not said that Metal keeps what
  // indirect commands alone name.
  std::vector<Owned<MTL::Resource>> execute(Encoding& encoding, const Resources& resources) const;
  // Notes the number of work that executes it.
  void note(uint64_t number) noexcept { last_run_ = number; }

 private:
  explicit IndirectCommands(Owned<MTL::IndirectCommandBuffer> commands)
      : commands_(std::move(commands)) {}
  void encode(size_t index, const Launch& launch, std::span<const Argument> arguments);
  bool holds(size_t index, const Launch& launch, std::span<const Argument> arguments) const;

  Owned<MTL::IndirectCommandBuffer> commands_;
  std::vector<Argument> arguments_;  // as they were encoded; empty: nothing was
  std::vector<bool> barriers_;       // likewise, by launch
  uint64_t last_run_ = 0;
};

}  // namespace npusim::metal
