// The functions of engines in a library that leaves them out (NPUSIM_SERVE=OFF, or no language
// models): it has the same interface, and says so.
#include "cpp/c_api/call.h"

namespace npusim::c_api {
namespace {

npusim_status absent() {
  return guarded([] {
    throw Failure(NPUSIM_ERROR_UNSUPPORTED,
                  "this build of libnpusim leaves out engines of many requests; build it with "
                  "NPUSIM_SERVE=ON");
  });
}

}  // namespace
}  // namespace npusim::c_api

using namespace npusim::c_api;

void npusim_engine_free(npusim_engine*) {}
npusim_status npusim_engine_create(npusim_program*, npusim_device*, npusim_weights*,
                                   const npusim_engine_options*, npusim_engine**) {
  return absent();
}
npusim_status npusim_engine_get_info(npusim_engine*, npusim_engine_info*) {
  return absent();
}
npusim_status npusim_engine_submit(npusim_engine*, const int64_t*, size_t,
                                   const npusim_request_options*, uint64_t*) {
  return absent();
}
npusim_status npusim_engine_cancel(npusim_engine*, uint64_t) {
  return absent();
}
npusim_status npusim_engine_allow(npusim_engine*, uint64_t, const uint8_t*, size_t) {
  return absent();
}
npusim_status npusim_engine_poll(npusim_engine*, double, int (*)(void*, const npusim_engine_event*),
                                 void*) {
  return absent();
}
npusim_status npusim_engine_get_stats(npusim_engine*, npusim_engine_stats*) {
  return absent();
}
npusim_status npusim_engine_drain(npusim_engine*, double, int32_t*) {
  return absent();
}
npusim_status npusim_engine_close(npusim_engine*) {
  return absent();
}
