#include "cpp/platform/processor.h"

#include "cpp/platform/windows/windows_headers.h"

namespace npusim::platform {

std::string processor_name() {
  char name[256] = {};
  DWORD bytes = sizeof name - 1;
  const char* const key = R"(HARDWARE\DESCRIPTION\System\CentralProcessor\0)";
  const LSTATUS got = RegGetValueA(HKEY_LOCAL_MACHINE, key, "ProcessorNameString", RRF_RT_REG_SZ,
                                   nullptr, name, &bytes);
  return got == ERROR_SUCCESS ? name : "";
}

}  // namespace npusim::platform
