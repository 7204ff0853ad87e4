// The functions of language models in a library that leaves them out (NPUSIM_LANGUAGE_MODELS=OFF):
// it has the same interface, and says so.
#include "cpp/c_api/call.h"

namespace npusim::c_api {
namespace {

npusim_status absent() {
  return guarded([] {
    throw Failure(NPUSIM_ERROR_UNSUPPORTED,
                  "this build of libnpusim leaves out language models; build it with "
                  "NPUSIM_LANGUAGE_MODELS=ON");
  });
}

}  // namespace
}  // namespace npusim::c_api

using namespace npusim::c_api;

void npusim_language_model_free(npusim_language_model*) {}
void npusim_language_session_free(npusim_language_session*) {}
void npusim_sampler_free(npusim_sampler*) {}
npusim_status npusim_language_model_create(npusim_program*, npusim_device*, npusim_weights*,
                                           npusim_language_model**) {
  return absent();
}
npusim_status npusim_language_model_get_info(npusim_language_model*, npusim_language_model_info*) {
  return absent();
}
npusim_status npusim_language_session_create(npusim_language_model*, npusim_language_session**) {
  return absent();
}
npusim_status npusim_language_session_append(npusim_language_session*, const int64_t*, size_t,
                                             npusim_should_cancel, void*) {
  return absent();
}
npusim_status npusim_language_session_position(npusim_language_session*, int64_t*) {
  return absent();
}
npusim_status npusim_language_session_tokens(npusim_language_session*, int64_t, int64_t*, size_t) {
  return absent();
}
npusim_status npusim_language_session_logits(npusim_language_session*, float*, size_t) {
  return absent();
}
npusim_status npusim_language_session_step(npusim_language_session*, npusim_sampler*, int32_t,
                                           int64_t*) {
  return absent();
}
npusim_status npusim_language_session_generate(npusim_language_session*, npusim_sampler*,
                                               const npusim_generation_options*,
                                               npusim_generation*) {
  return absent();
}
npusim_status npusim_language_session_score(npusim_language_session*, const int64_t*, size_t,
                                            double*) {
  return absent();
}
npusim_status npusim_language_session_fork(npusim_language_session*, npusim_language_session**) {
  return absent();
}
npusim_status npusim_language_session_rewind(npusim_language_session*, int64_t) {
  return absent();
}
npusim_status npusim_language_session_save(npusim_language_session*, const char*) {
  return absent();
}
npusim_status npusim_language_session_load(npusim_language_session*, const char*) {
  return absent();
}
npusim_status npusim_sampler_create(const npusim_sampler_options*, npusim_sampler**) {
  return absent();
}
npusim_status npusim_sampler_sample(npusim_sampler*, const float*, size_t, const int64_t*, size_t,
                                    int64_t*) {
  return absent();
}
