// How messages name a command: where it stands, and the node of the model it came from.
#pragma once

#include <string>

#include "cpp/runtime/program.h"

namespace npusim {

// "command 3 (conv1, model.layer1, net.py:12)", of one of the method's commands.
std::string place_of(const Program& program, const Method& method, const Command& command);

}  // namespace npusim
