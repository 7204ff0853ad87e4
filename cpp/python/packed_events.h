// Events of many requests as bytes, for whoever reads them in another process: with a step of 256
// requests, one piece of memory instead of a thousand objects.
#pragma once

#include <string>
#include <vector>

#include "cpp/serve/request.h"

namespace npusim::python {

// As python/npusim/serve/packed_events.py, which reads them, describes; in the machine's own order
// of bytes. Empty for no events.
std::string pack_events(const std::vector<serve::Event>& events);

}  // namespace npusim::python
