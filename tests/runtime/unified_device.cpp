// The device of tests/cpp/unified_device.h for Python: `device(cpu)`, over a cpu device.
#include "tests/cpp/unified_device.h"

#include <pybind11/pybind11.h>

#include "cpp/python/held.h"

PYBIND11_MODULE(unified_device, module) {
  using npusim::Device;
  using npusim::tests::UnifiedDevice;
  module.def("device", [](std::shared_ptr<Device> cpu, bool can_fail) -> std::shared_ptr<Device> {
    return std::make_shared<UnifiedDevice>(
        std::move(cpu), UnifiedDevice::Options{.can_fail = can_fail, .imports = false});
  });
  module.def("waiting", [](const std::shared_ptr<Device>& device) {
    return dynamic_cast<UnifiedDevice&>(*device).waiting();
  });
}
