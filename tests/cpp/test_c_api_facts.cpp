// The C interface: what it says of programs, devices, states and tokens, and how it reads and
// writes them. What it runs and refuses is in test_c_api.cpp.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "tests/cpp/c_api_case.h"

namespace npusim::tests {
namespace {

void test_names() {
  check(std::strchr(npusim_version(), '.') != nullptr, "a version");
  const auto named = [](npusim_dtype dtype, const char* name, size_t size) {
    check(std::strcmp(npusim_dtype_name(dtype), name) == 0, name);
    check(npusim_dtype_size(dtype) == size, std::string("size of ") + name);
  };
  named(NPUSIM_FLOAT32, "float32", 4);
  named(NPUSIM_BFLOAT16, "bfloat16", 2);
  named(NPUSIM_FLOAT64, "float64", 8);
  named(NPUSIM_BOOL, "bool", 1);
  for (const npusim_dtype none : {-1, 10, 1 << 30}) {
    check(npusim_dtype_name(none) == nullptr && npusim_dtype_size(none) == 0, "no dtype");
  }
  std::vector<std::string> devices;
  for (size_t i = 0; i < npusim_device_count(); ++i) devices.push_back(npusim_device_name(i));
  check(std::find(devices.begin(), devices.end(), "cpu") != devices.end(), "there is the cpu");
  check(npusim_device_name(devices.size()) == nullptr, "no further device");
}

void test_facts_of_programs() {
  Loaded it("language_model.npubin");
  size_t method = 9, tensor = 9;
  CHECK_OK(npusim_program_find_method(it.program, "decode", &method));
  check(method == 1, "decode is the second method");
  CHECK_OK(npusim_program_find_method(it.program, nullptr, &method));
  check(method == 0, "no name means the first");
  method = 9;
  check_status(npusim_program_find_method(it.program, "train", &method), NPUSIM_ERROR_INPUT,
               "train");
  check(method == 9, "what fails writes nothing");
  CHECK_OK(npusim_program_find_tensor(it.program, 0, NPUSIM_INPUT, "length", &tensor));
  check(tensor == 1, "length is the second input");
  check_status(npusim_program_find_tensor(it.program, 1, NPUSIM_INPUT, "length", &tensor),
               NPUSIM_ERROR_INPUT, "length");
  npusim_command_info command = NPUSIM_COMMAND_INFO_INIT;
  CHECK_OK(npusim_program_get_command(it.program, 0, 0, &command));
  check(std::strcmp(command.kernel, "copy") == 0 && std::strcmp(command.op, "test.copy") == 0 &&
            std::strcmp(command.source, "net.py:7") == 0,
        "where a command comes from");
  check_status(npusim_program_get_command(it.program, 0, 10, &command), NPUSIM_ERROR_INPUT, "10");
  npusim_tensor_info info = NPUSIM_TENSOR_INFO_INIT;
  CHECK_OK(npusim_program_get_weight(it.program, 0, &info));
  check(std::strcmp(info.name, "table") == 0 && info.bytes == 32 * 32 * 4, "the weight");
  check_status(npusim_program_get_weight(it.program, 1, &info), NPUSIM_ERROR_INPUT);
  CHECK_OK(npusim_program_get_state(it.program, 1, &info));
  check(std::strcmp(info.name, "cache") == 0 && info.shape[1] == 24, "the second state");
  check_status(npusim_program_get_state(it.program, 2, &info), NPUSIM_ERROR_INPUT);
}

void test_states() {
  Loaded it("language_model.npubin");
  npusim_state *state = nullptr, *copy = nullptr;
  CHECK_OK(npusim_state_create(it.program, it.device, &state));
  int64_t position = -1;
  CHECK_OK(npusim_state_read(state, "position", &position, sizeof position));
  check(position == 0, "zero at first");
  position = 5;
  CHECK_OK(npusim_state_write(state, "position", &position, sizeof position));
  CHECK_OK(npusim_state_copy(state, &copy));
  position = 7;
  CHECK_OK(npusim_state_write(state, "position", &position, sizeof position));
  CHECK_OK(npusim_state_read(copy, "position", &position, sizeof position));
  check(position == 5, "a copy goes its own way");
  check_status(npusim_state_read(state, "position", &position, 4), NPUSIM_ERROR_INPUT, "8 bytes");
  check_status(npusim_state_write(state, "nothing", &position, 8), NPUSIM_ERROR_INPUT, "nothing");
  check_status(npusim_state_write(state, "position", nullptr, 8), NPUSIM_ERROR_INPUT, "null");
  npusim_state_free(state);
  check_status(npusim_state_copy(state, &copy), NPUSIM_ERROR_HANDLE, "was freed");
  npusim_state_free(copy);
}

void test_memory_of_others() {
  Loaded it("sum.npubin");
  std::vector<float> x(4, 3), y(4, 0);
  const int64_t shape[] = {1, 4};
  npusim_buffer *at = nullptr, *own = nullptr;
  static int released = 0;
  released = 0;
  const auto release = [](void*) { ++released; };
  const auto address = reinterpret_cast<uintptr_t>(x.data());
  CHECK_OK(npusim_buffer_at(it.device, NPUSIM_FLOAT32, shape, 2, address, release, nullptr, &at));
  npusim_buffer_info info = NPUSIM_BUFFER_INFO_INIT;
  CHECK_OK(npusim_buffer_get_info(at, &info));
  check(info.address == address && info.bytes == 16 && info.borrowed == 1, "what lies there");
  CHECK_OK(npusim_buffer_allocate(it.device, NPUSIM_FLOAT32, shape, 2, &own));
  CHECK_OK(npusim_buffer_copy(own, at));
  CHECK_OK(npusim_buffer_read(own, y.data(), 16));
  check(y == x, "copied from there");
  y[2] = 8;
  CHECK_OK(npusim_buffer_write(own, y.data(), 16));
  CHECK_OK(npusim_buffer_copy(at, own));
  check(x[2] == 8, "and back");
  check_status(npusim_buffer_write(own, y.data(), 15), NPUSIM_ERROR_INPUT, "16 bytes, got 15");
  npusim_buffer_free(at);
  check(released == 1, "let go of");
  check_status(npusim_buffer_at(it.device, NPUSIM_FLOAT32, shape, 2, 0, release, nullptr, &at),
               NPUSIM_ERROR_INPUT, "address is 0");
  check(released == 2, "also where it fails");
  npusim_buffer_free(own);
  check_status(npusim_device_order(it.device, 0, 0), NPUSIM_ERROR_INPUT, "no streams");
}

// The sum of two rows is replaced by sevens before it is summed up.
void test_writing_between_commands(npusim_executor* executor, const npusim_tensor* in,
                                   npusim_tensor& result, const std::vector<float>& out) {
  struct Writes {
    npusim_executor* executor;
    std::vector<std::string> refusals;
    size_t written = 0;
  } writes{executor, {}};
  npusim_run_options options = NPUSIM_RUN_OPTIONS_INIT;
  options.context = &writes;
  options.after_command = [](void* context, size_t command) {
    auto& here = *static_cast<Writes*>(context);
    const float sevens[4] = {7, 7, 7, 7};
    for (uint32_t buffer = 0; command == 0 && buffer < 5; ++buffer) {
      float value = 0;
      npusim_executor_read_buffer(here.executor, buffer, &value, sizeof value, nullptr);
      const npusim_status status =
          npusim_executor_write_buffer(here.executor, buffer, sevens, value == 3 ? 16 : 1 << 12);
      if (status == NPUSIM_OK) ++here.written;
      if (status != NPUSIM_OK) here.refusals.push_back(npusim_last_error());
    }
    return 0;
  };
  CHECK_OK(npusim_executor_call(executor, 0, in, 2, &result, 1, &options));
  check(writes.written == 1 && out[0] == 28, "the next command reads what was written");
  const auto refused = [&](const char* words) {
    return std::any_of(writes.refusals.begin(), writes.refusals.end(),
                       [&](const std::string& said) { return said.find(words) != said.npos; });
  };
  check(refused("is not one that commands write"), "inputs are the caller's");
  check(refused("holds 4 bytes, got 4096"), "no more than it holds");
  check(refused("has no buffer"), "no such buffer");
  check_status(npusim_executor_write_buffer(executor, 0, nullptr, 4), NPUSIM_ERROR_INPUT, "null");
}

void test_what_runs() {
  Loaded it("sum.npubin");
  const int64_t three = 3, nine = 9;
  CHECK_OK(npusim_executor_prepare(it.executor, 0, &three, 1));
  check_status(npusim_executor_prepare(it.executor, 0, &nine, 1), NPUSIM_ERROR_INPUT, "9");
  check_status(npusim_executor_prepare(it.executor, 1, &three, 1), NPUSIM_ERROR_INPUT);
  const char* name = nullptr;
  CHECK_OK(npusim_executor_implementation(it.executor, 0, 0, &name));
  check(std::strcmp(name, "") == 0, "a kernel of npusim");
  check_status(npusim_executor_implementation(it.executor, 0, 2, &name), NPUSIM_ERROR_INPUT);
  struct Seen {
    npusim_executor* executor;
    float value = 0;
    size_t needed = 0;
  } seen{it.executor};
  std::vector<float> x(4, 1), y(4, 2), out(1);
  const std::vector<int64_t> shape = {1, 4};
  const npusim_tensor in[] = {floats(x, shape), floats(y, shape)};
  npusim_tensor result = floats(out, shape);
  result.shape = nullptr;
  npusim_run_options options = NPUSIM_RUN_OPTIONS_INIT;
  options.context = &seen;
  options.after_command = [](void* context, size_t command) {
    auto& here = *static_cast<Seen*>(context);
    for (uint32_t buffer = 0; command == 0 && buffer < 8; ++buffer) {
      float value = 0;
      size_t needed = 0;
      const npusim_status read =
          npusim_executor_read_buffer(here.executor, buffer, &value, sizeof value, &needed);
      if (read == NPUSIM_OK && value == 3) here.value = value;
      if (read == NPUSIM_OK) here.needed = std::max(here.needed, needed);
    }
    return 0;
  };
  CHECK_OK(npusim_executor_call(it.executor, 0, in, 2, &result, 1, &options));
  check(seen.value == 3 && seen.needed >= 16, "what lies between commands can be looked at");
  test_writing_between_commands(it.executor, in, result, out);
}

void test_sessions_and_files() {
  Loaded it("language_model.npubin");
  std::vector<float> table(32 * 32, 0);
  for (size_t row = 0; row < 32; ++row) table[row * 32 + (row + 2) % 32] = 9;
  const std::vector<int64_t> shape = {32, 32};
  npusim_tensor tensor = floats(table, shape, "table");
  npusim_weights* weights = nullptr;
  check_status(npusim_weights_open(it.program, it.device, "nowhere", nullptr, &weights),
               NPUSIM_ERROR_IO, "nowhere");
  CHECK_OK(npusim_weights_from_tensors(it.program, it.device, &tensor, 1, nullptr, nullptr, nullptr,
                                       &weights));
  npusim_language_model* model = nullptr;
  npusim_language_session *session = nullptr, *other = nullptr;
  CHECK_OK(npusim_language_model_create(it.program, it.device, weights, &model));
  CHECK_OK(npusim_language_session_create(model, &session));
  CHECK_OK(npusim_language_session_create(model, &other));
  const int64_t prompt[] = {1, 2, 3};
  double scores[3] = {-1, -1, -1};
  CHECK_OK(npusim_language_session_score(session, prompt, 3, scores));
  check(scores[0] == 0 && scores[1] < 0 && std::isfinite(scores[2]), "logarithms of probabilities");
  float logits[32] = {};
  CHECK_OK(npusim_language_session_logits(session, logits, 32));
  check(logits[5] == 9, "after 3 most likely comes 5");
  check_status(npusim_language_session_logits(session, logits, 31), NPUSIM_ERROR_INPUT, "32");
  npusim_sampler* sampler = nullptr;
  CHECK_OK(npusim_sampler_create(nullptr, &sampler));
  int64_t token = -1;
  CHECK_OK(npusim_sampler_sample(sampler, logits, 32, prompt, 3, &token));
  check(token == 5, "the likeliest");
  check_status(npusim_sampler_sample(sampler, nullptr, 32, nullptr, 0, &token), NPUSIM_ERROR_INPUT,
               "null");
  const auto path =
      std::filesystem::temp_directory_path() / ("npusim_test_session_" + std::to_string(getpid()));
  CHECK_OK(npusim_language_session_save(session, path.string().c_str()));
  CHECK_OK(npusim_language_session_load(other, path.string().c_str()));
  CHECK_OK(npusim_language_session_step(session, sampler, 1, &token));
  int64_t again = -1;
  CHECK_OK(npusim_language_session_step(other, sampler, 1, &again));
  check(token == 5 && again == 5, "a session that was read goes on alike");
  std::ofstream(path) << "no session";
  check_status(npusim_language_session_load(other, path.string().c_str()), NPUSIM_ERROR_FORMAT);
  CHECK_OK(npusim_language_session_position(other, &again));
  check(again == 4, "and stays as it was where that fails");
  std::filesystem::remove(path);
  check_status(npusim_language_session_load(other, path.string().c_str()), NPUSIM_ERROR_IO);
  check_status(npusim_language_session_save(other, "/nowhere/at/all"), NPUSIM_ERROR_IO);
  npusim_sampler_free(sampler);
  npusim_language_session_free(session);
  npusim_language_session_free(other);
  npusim_language_model_free(model);
  npusim_weights_free(weights);
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  test_names();
  test_facts_of_programs();
  test_states();
  test_memory_of_others();
  test_what_runs();
  test_sessions_and_files();
  return exit_code();
}
