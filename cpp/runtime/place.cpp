#include "cpp/runtime/place.h"

namespace npusim {

std::string place_of(const Program& program, const Method& method, const Command& command) {
  const NodeInfo& node = program.nodes[command.node];
  std::string text = "command " + std::to_string(&command - method.commands.data()) + " (";
  text += std::string(node.name.empty() ? node.op : node.name);
  if (!node.source.empty()) text += ", " + std::string(node.source);
  return text + ")";
}

}  // namespace npusim
