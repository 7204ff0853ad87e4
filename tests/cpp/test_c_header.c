/* The header is C99: this file is compiled as such, without extensions and with all warnings. */
#include <npusim/npusim.h>

int main(void) {
  npusim_device_options options = NPUSIM_DEVICE_OPTIONS_INIT;
  npusim_device* device = NULL;
  int failed = npusim_abi_version() != NPUSIM_ABI_VERSION;
  failed += npusim_device_open("null", &options, &device) != NPUSIM_OK;
  npusim_device_free(device);
  failed += npusim_device_synchronize(device) != NPUSIM_ERROR_HANDLE;
  return failed;
}
