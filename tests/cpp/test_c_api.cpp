// The C interface: what it runs, and what it refuses, through the public header alone. The program
// is a file of the fuzzers' corpus; what models compute is tested from Python.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cpp/c_api_case.h"

namespace npusim::tests {
namespace {

// sum.npubin: sum(x[n, 4] + y[n, 4], rows), n from 1 to 8, without weights.
void test_calls_by_order_and_name() {
  Loaded it("sum.npubin");
  for (const int64_t n : {1, 3, 8}) {
    const std::vector<int64_t> shape = {n, 4};
    std::vector<float> x(static_cast<size_t>(n * 4), 1), y(x.size(), 2);
    std::vector<float> out(static_cast<size_t>(n));
    const npusim_tensor in[] = {floats(x, shape), floats(y, shape)};
    npusim_tensor result = floats(out, {n});
    result.shape = nullptr;
    CHECK_OK(npusim_executor_call(it.executor, 0, in, 2, &result, 1, nullptr));
    for (const float value : out) check(value == 12, "1 + 2, four times");
    y[0] = 4;
    const npusim_tensor named[] = {floats(y, shape, "y"), floats(x, shape, "x")};
    CHECK_OK(npusim_executor_call(it.executor, 0, named, 2, &result, 1, nullptr));
    check(out[0] == 14, "named inputs go to their places");
  }
}

void test_calls_refuse_what_does_not_fit() {
  Loaded it("sum.npubin");
  const std::vector<int64_t> three = {3, 4}, nine = {9, 4};
  std::vector<float> x(36, 1), out(9);
  npusim_tensor a = floats(x, three), b = a, result = floats(out, {9});
  a.bytes = b.bytes = 48;
  result.shape = nullptr;
  const auto call = [&](size_t count = 2) {
    const npusim_tensor in[] = {a, b};
    return npusim_executor_call(it.executor, 0, in, count, &result, 1, nullptr);
  };
  CHECK_OK(call());
  check_status(call(1), NPUSIM_ERROR_INPUT, "2 inputs, got 1");
  b.dtype = NPUSIM_INT32;
  check_status(call(), NPUSIM_ERROR_INPUT, "float32, got int32");
  b = a;
  b.dtype = 77;
  check_status(call(), NPUSIM_ERROR_INPUT, "no dtype 77");
  b = a;
  b.bytes = 47;
  check_status(call(), NPUSIM_ERROR_INPUT, "48 bytes, got 47");
  b = a;
  b.data = nullptr;
  check_status(call(), NPUSIM_ERROR_INPUT, "data is null");
  b = a;
  b.shape = nine.data();
  check_status(call(), NPUSIM_ERROR_INPUT);
  b = a;
  b.name = "y";
  check_status(call(), NPUSIM_ERROR_INPUT, "all or none");
  a.name = "y";
  check_status(call(), NPUSIM_ERROR_INPUT, "comes twice");
  a.name = "z";
  check_status(call(), NPUSIM_ERROR_INPUT, "no tensor z there; it has: x, y");
  a.name = b.name = nullptr;
  result.bytes = 11;
  check_status(call(), NPUSIM_ERROR_INPUT, "12 bytes, got 11");
}

void test_handles() {
  Loaded it("sum.npubin");
  npusim_program_info info = NPUSIM_PROGRAM_INFO_INIT;
  CHECK_OK(npusim_program_get_info(it.program, &info));
  check(info.method_count == 1 && std::strcmp(info.target, "cpu") == 0, "facts of the program");
  check_status(npusim_program_get_info(nullptr, &info), NPUSIM_ERROR_HANDLE,
               "program handle is null");
  auto* wrong = reinterpret_cast<npusim_program*>(it.device);
  check_status(npusim_program_get_info(wrong, &info), NPUSIM_ERROR_HANDLE, "another type");
  auto* garbage = reinterpret_cast<npusim_program*>(&info);
  check_status(npusim_program_get_info(garbage, &info), NPUSIM_ERROR_HANDLE);
  npusim_program* freed = it.program;
  npusim_program_free(wrong);  // ignored
  npusim_device_info device = NPUSIM_DEVICE_INFO_INIT;
  CHECK_OK(npusim_device_get_info(it.device, &device));
  npusim_program_free(freed);
  npusim_program_free(freed);
  check_status(npusim_program_get_info(freed, &info), NPUSIM_ERROR_HANDLE, "was freed");
  CHECK_OK(npusim_program_open(program_path("sum.npubin").c_str(), &it.program));
  check(it.program != freed, "a handle never comes again");
  check_status(npusim_program_get_info(freed, &info), NPUSIM_ERROR_HANDLE, "was freed");
  std::vector<float> x(4, 1), out(1);
  const npusim_tensor in[] = {floats(x, {1, 4}), floats(x, {1, 4})};
  npusim_tensor result = floats(out, {1});
  result.shape = nullptr;
  const std::vector<int64_t> shape = {1, 4};
  npusim_tensor live[] = {in[0], in[1]};
  live[0].shape = live[1].shape = shape.data();
  CHECK_OK(npusim_executor_call(it.executor, 0, live, 2, &result, 1, nullptr));
  check(out[0] == 8, "an executor outlives its program's handle");
}

void test_struct_sizes() {
  Loaded it("sum.npubin");
  npusim_program_info info = NPUSIM_PROGRAM_INFO_INIT;
  for (const size_t size : {size_t{0}, sizeof(size_t), size_t{17}, size_t{1} << 20}) {
    info.struct_size = size;
    check_status(npusim_program_get_info(it.program, &info), NPUSIM_ERROR_STRUCT, "struct_size");
  }
  // A header that is older: what it has no room for is not written.
  info = NPUSIM_PROGRAM_INFO_INIT;
  info.struct_size = 2 * sizeof(size_t);
  info.metadata = "as before";
  CHECK_OK(npusim_program_get_info(it.program, &info));
  check(std::strcmp(info.metadata, "as before") == 0 && info.target != nullptr, "an older header");
  // One that is newer: fields that are not known here have to be zero.
  struct Newer {
    npusim_run_options known = NPUSIM_RUN_OPTIONS_INIT;
    size_t unknown = 0;
  } newer;
  newer.known.struct_size = sizeof newer;
  std::vector<float> x(4, 1), out(1);
  const std::vector<int64_t> shape = {1, 4};
  const npusim_tensor in[] = {floats(x, shape), floats(x, shape)};
  npusim_tensor result = floats(out, shape);
  result.shape = nullptr;
  CHECK_OK(npusim_executor_call(it.executor, 0, in, 2, &result, 1, &newer.known));
  newer.unknown = 1;
  check_status(npusim_executor_call(it.executor, 0, in, 2, &result, 1, &newer.known),
               NPUSIM_ERROR_STRUCT, "does not know");
}

void test_callbacks() {
  Loaded it("sum.npubin");
  std::vector<float> x(4, 1), out(1);
  const std::vector<int64_t> shape = {1, 4};
  const npusim_tensor in[] = {floats(x, shape), floats(x, shape)};
  npusim_tensor result = floats(out, shape);
  result.shape = nullptr;
  struct Seen {
    npusim_executor* executor;
    size_t commands = 0;
    npusim_status inner = NPUSIM_OK;
    int answer = 0;
    bool throws = false;
  } seen{it.executor};
  npusim_run_options options = NPUSIM_RUN_OPTIONS_INIT;
  options.context = &seen;
  options.after_command = [](void* context, size_t) {
    auto& here = *static_cast<Seen*>(context);
    ++here.commands;
    here.inner =
        npusim_executor_settle(here.executor, 0) == NPUSIM_OK ? here.inner : NPUSIM_ERROR_INTERNAL;
    here.inner = npusim_executor_reset(here.executor);
    if (here.throws) throw 7;
    return here.answer;
  };
  const auto call = [&] {
    return npusim_executor_call(it.executor, 0, in, 2, &result, 1, &options);
  };
  CHECK_OK(call());
  npusim_method_info method = NPUSIM_METHOD_INFO_INIT;
  CHECK_OK(npusim_program_get_method(it.program, 0, &method));
  check(seen.commands == method.command_count, "called after every command");
  check(seen.inner == NPUSIM_ERROR_BUSY, "what runs is busy for its callbacks");
  seen.answer = 1;
  check_status(call(), NPUSIM_ERROR_CANCELLED, "asked for it");
  seen.throws = true;
  check_status(call(), NPUSIM_ERROR_CANCELLED, "threw");
  options.after_command = nullptr;
  CHECK_OK(call());
  check(out[0] == 8, "it runs on as before");
  std::vector<double> seconds(method.command_count, -1);
  options.seconds = seconds.data();
  options.second_count = seconds.size();
  CHECK_OK(call());
  for (const double taken : seconds) check(taken >= 0, "times are written");
  options.second_count += 1;
  check_status(call(), NPUSIM_ERROR_INPUT, "room for the times");
}

void test_buffers() {
  Loaded it("sum.npubin");
  static int released = 0;
  released = 0;
  const auto release = [](void*) { ++released; };
  std::vector<float> x(4, 3);
  const std::vector<int64_t> shape = {1, 4};
  npusim_tensor tensor = floats(x, shape);
  npusim_buffer *lent = nullptr, *out = nullptr, *taken = nullptr;
  CHECK_OK(npusim_buffer_from_host(it.device, &tensor, NPUSIM_COPY_NEVER, release, nullptr, &lent));
  const int64_t one = 1;
  CHECK_OK(npusim_buffer_for(it.executor, 0, NPUSIM_OUTPUT, 0, &one, 1, &out));
  npusim_run_options options = NPUSIM_RUN_OPTIONS_INIT;
  options.sizes = &one;
  options.size_count = 1;
  npusim_buffer* in[] = {lent, lent};
  CHECK_OK(npusim_executor_run(it.executor, 0, in, 2, &out, 1, &options));
  float sum = 0;
  CHECK_OK(npusim_buffer_read(out, &sum, sizeof sum));
  check(sum == 24, "3 + 3, four times");
  check_status(npusim_buffer_read(out, &sum, 3), NPUSIM_ERROR_INPUT, "4 bytes, got 3");
  struct DLManagedTensor* exchanged = nullptr;
  CHECK_OK(npusim_buffer_to_dlpack(lent, nullptr, &exchanged));
  CHECK_OK(npusim_buffer_from_dlpack(it.device, exchanged, NPUSIM_COPY_IF_NEEDED, &taken));
  npusim_buffer_free(lent);
  check(released == 0, "lent on");
  void* data = nullptr;
  CHECK_OK(npusim_buffer_map(taken, &data));
  check(data == x.data(), "all the way without a copy");
  npusim_buffer_free(taken);
  check(released == 1, "given back by the last owner, once");
  CHECK_OK(
      npusim_buffer_from_host(it.device, &tensor, NPUSIM_COPY_ALWAYS, release, nullptr, &lent));
  check(released == 2, "a copy needs the memory no more");
  npusim_buffer_free(lent);
  tensor.bytes = 1;
  check_status(npusim_buffer_from_host(it.device, &tensor, 0, release, nullptr, &lent),
               NPUSIM_ERROR_INPUT);
  check(released == 3, "also where it fails");
  npusim_buffer_free(out);
  const int64_t absurd[] = {int64_t{1} << 40, int64_t{1} << 40}, negative[] = {-1};
  check_status(npusim_buffer_allocate(it.device, NPUSIM_INT8, absurd, 2, &out), NPUSIM_ERROR_INPUT,
               "terabyte");
  check_status(npusim_buffer_allocate(it.device, NPUSIM_INT8, negative, 1, &out),
               NPUSIM_ERROR_INPUT, "negative");
}

void test_sizes() {
  Loaded it("sum.npubin");
  npusim_symbol symbol = NPUSIM_SYMBOL_INIT;
  CHECK_OK(npusim_program_get_symbol(it.program, 0, 0, &symbol));
  check(symbol.low == 1 && symbol.high == 8, "bounds of the symbol");
  npusim_tensor_info info = NPUSIM_TENSOR_INFO_INIT;
  CHECK_OK(npusim_program_get_tensor(it.program, 0, NPUSIM_INPUT, 0, &info));
  check(std::strcmp(info.dims[0], symbol.name) == 0 && std::strcmp(info.dims[1], "4") == 0,
        "dims as text");
  const int64_t shape[] = {5, 4};
  const int64_t* shapes[] = {shape, shape};
  const size_t ranks[] = {2, 2};
  int64_t size = 0, out = 0;
  CHECK_OK(npusim_program_bind(it.program, 0, shapes, ranks, 2, &size, 1));
  check(size == 5, "what the shapes say");
  CHECK_OK(npusim_program_shape_at(it.program, 0, NPUSIM_OUTPUT, 0, &size, 1, &out, 1));
  check(out == 5, "the output at this size");
  check_status(npusim_program_shape_at(it.program, 0, 2, 0, &size, 1, &out, 1), NPUSIM_ERROR_INPUT);
  size = 9;
  check_status(npusim_program_shape_at(it.program, 0, NPUSIM_OUTPUT, 0, &size, 1, &out, 1),
               NPUSIM_ERROR_INPUT);
  check_status(npusim_program_get_tensor(it.program, 1, NPUSIM_INPUT, 0, &info), NPUSIM_ERROR_INPUT,
               "no method 1");
}

// Threads have an executor each; one that two use at once answers both, one of them as busy.
void test_threads() {
  Loaded it("sum.npubin");
  std::atomic<int> wrong{0};
  const auto work = [&](npusim_executor* executor, bool shared) {
    std::vector<float> x(32, 1), out(8);
    const std::vector<int64_t> shape = {8, 4};
    const npusim_tensor in[] = {floats(x, shape), floats(x, shape)};
    npusim_tensor result = floats(out, shape);
    result.shape = nullptr;
    for (int i = 0; i < 200; ++i) {
      const npusim_status status = npusim_executor_call(executor, 0, in, 2, &result, 1, nullptr);
      const bool fine = status == NPUSIM_OK ? out[7] == 8 : shared && status == NPUSIM_ERROR_BUSY;
      if (!fine) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      npusim_executor* own = nullptr;
      if (npusim_executor_create(it.program, it.device, &own) != NPUSIM_OK) ++wrong;
      work(own, false);
      npusim_executor_free(own);
      work(it.executor, true);
    });
  }
  for (std::thread& thread : threads) thread.join();
  check(wrong == 0, "each result is right or refused");
}

// What was packed is opened in place of the checkpoint, by this program and by no other.
void check_packed(const Loaded& it, npusim_weights* weights) {
  const auto file = std::filesystem::temp_directory_path() /
                    ("npusim_test_c_api_" + std::to_string(std::random_device()()));
  check_status(npusim_weights_pack(nullptr, file.string().c_str()), NPUSIM_ERROR_HANDLE, "weights");
  check_status(npusim_weights_pack(weights, nullptr), NPUSIM_ERROR_INPUT, "path");
  check_status(npusim_weights_pack(weights, "/nowhere/w.npuw"), NPUSIM_ERROR_IO, "nowhere");
  CHECK_OK(npusim_weights_pack(weights, file.string().c_str()));
  npusim_weights* mapped = nullptr;
  CHECK_OK(npusim_weights_open(it.program, it.device, file.string().c_str(), nullptr, &mapped));
  npusim_weights_info info = NPUSIM_WEIGHTS_INFO_INIT;
  CHECK_OK(npusim_weights_get_info(mapped, &info));
  check(info.in_place && info.note != nullptr && info.note[0] == 0, "mapped as they are");
  npusim_weights_free(mapped);
  Loaded other("sum.npubin");
  check_status(
      npusim_weights_open(other.program, other.device, file.string().c_str(), nullptr, &mapped),
      NPUSIM_ERROR_WEIGHTS, "in another way");
  std::filesystem::remove(file);
}

// Weights of language_model.npubin: after a token most likely comes the next but one.
npusim_weights* load_table(const Loaded& it) {
  static std::vector<float> table;
  table.assign(32 * 32, 0);
  for (size_t row = 0; row < 32; ++row) table[row * 32 + (row + 2) % 32] = 9;
  static const std::vector<int64_t> shape = {32, 32};
  npusim_tensor tensor = floats(table, shape, "other");
  static int released = 0;
  const auto release = [](void*) { ++released; };
  npusim_weights* weights = nullptr;
  npusim_weights_options options = NPUSIM_WEIGHTS_OPTIONS_INIT;
  const auto load = [&] {
    return npusim_weights_from_tensors(it.program, it.device, &tensor, 1, &options, release,
                                       nullptr, &weights);
  };
  check_status(load(), NPUSIM_ERROR_WEIGHTS, "table");
  check(released == 1, "given back where loading fails");
  options.progress = [](void*, int64_t, int64_t) { return 1; };
  tensor.name = "table";
  check_status(load(), NPUSIM_ERROR_CANCELLED, "progress");
  options.progress = nullptr;
  tensor.bytes -= 4;
  check_status(load(), NPUSIM_ERROR_INPUT, "4092 bytes");
  tensor.bytes += 4;
  const npusim_renaming renaming = {sizeof renaming, "table", "other"};
  tensor.name = "other";
  options.renamings = &renaming;
  options.renaming_count = 1;
  CHECK_OK(load());
  npusim_weights_info info = NPUSIM_WEIGHTS_INFO_INIT;
  CHECK_OK(npusim_weights_get_info(weights, &info));
  check(info.extra_count == 0, "no tensor is left over");
  CHECK_OK(npusim_weights_check(weights));
  check_packed(it, weights);
  return weights;
}

void test_language_model() {
  Loaded it("language_model.npubin");
  npusim_language_model* model = nullptr;
  npusim_weights* weights = load_table(it);
  CHECK_OK(npusim_language_model_create(it.program, it.device, weights, &model));
  npusim_weights_free(weights);
  npusim_language_model_info info = NPUSIM_LANGUAGE_MODEL_INFO_INIT;
  CHECK_OK(npusim_language_model_get_info(model, &info));
  npusim_language_session *session = nullptr, *fork = nullptr;
  CHECK_OK(npusim_language_session_create(model, &session));
  npusim_language_model_free(model);
  npusim_sampler* sampler = nullptr;
  CHECK_OK(npusim_sampler_create(nullptr, &sampler));
  check_status(npusim_language_session_generate(session, sampler, nullptr, nullptr),
               NPUSIM_ERROR_LIMIT);
  const int64_t prompt[] = {1, 2, 3};
  const auto cancels = [](void*) { return 1; };
  check_status(npusim_language_session_append(session, prompt, 3, cancels, nullptr),
               NPUSIM_ERROR_CANCELLED);
  int64_t position = -1;
  CHECK_OK(npusim_language_session_position(session, &position));
  check(position == 0, "a cancelled append leaves the session as it was");
  CHECK_OK(npusim_language_session_append(session, prompt, 3, nullptr, nullptr));
  CHECK_OK(npusim_language_session_fork(session, &fork));
  struct Made {
    npusim_language_session* session;
    std::vector<int64_t> tokens;
    npusim_status inner;
  } made{session, {}, NPUSIM_OK};
  npusim_generation_options options = NPUSIM_GENERATION_OPTIONS_INIT;
  options.ignore_eos = 1;
  options.context = &made;
  options.on_token = [](void* context, int64_t token) {
    auto& here = *static_cast<Made*>(context);
    here.tokens.push_back(token);
    here.inner = npusim_language_session_rewind(here.session, 0);
    return here.tokens.size() == 4 ? 1 : 0;
  };
  npusim_generation generation = NPUSIM_GENERATION_INIT;
  CHECK_OK(npusim_language_session_generate(session, sampler, &options, &generation));
  check(generation.reason == NPUSIM_FINISHED_CALLER && generation.token_count == 4, "stopped");
  check(made.inner == NPUSIM_ERROR_BUSY, "a session is busy for its callbacks");
  int64_t tokens[4] = {};
  CHECK_OK(npusim_language_session_tokens(session, 3, tokens, 4));
  check(std::vector<int64_t>(tokens, tokens + 4) == made.tokens, "its tokens");
  options.on_token = nullptr;
  options.max_new_tokens = 4;
  CHECK_OK(npusim_language_session_generate(fork, sampler, &options, &generation));
  int64_t again[4] = {};
  CHECK_OK(npusim_language_session_tokens(fork, 3, again, 4));
  check(std::memcmp(tokens, again, sizeof tokens) == 0, "a fork continues alike");
  check_status(npusim_language_session_tokens(fork, 4, again, 4), NPUSIM_ERROR_LIMIT);
  options.max_new_tokens = -1;
  check_status(npusim_language_session_generate(fork, sampler, &options, &generation),
               NPUSIM_ERROR_LIMIT, "got -1");
  npusim_sampler_options bad = NPUSIM_SAMPLER_OPTIONS_INIT;
  bad.temperature = -1;
  npusim_sampler* none = nullptr;
  check_status(npusim_sampler_create(&bad, &none), NPUSIM_ERROR_LIMIT, "temperature");
  npusim_language_session_free(session);
  npusim_language_session_free(fork);
  npusim_sampler_free(sampler);
}

void test_loading() {
  npusim_program* program = nullptr;
  check_status(npusim_program_open("nowhere.npubin", &program), NPUSIM_ERROR_IO);
  check_status(npusim_program_open(nullptr, &program), NPUSIM_ERROR_INPUT, "path is null");
  check_status(npusim_program_from_memory("x", 1, &program), NPUSIM_ERROR_FORMAT);
  check_status(npusim_program_from_memory(nullptr, 0, &program), NPUSIM_ERROR_FORMAT);
  check(program == nullptr, "nothing is written where nothing was made");
  std::ifstream file(program_path("sum.npubin"), std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  CHECK_OK(npusim_program_from_memory(bytes.data(), bytes.size(), &program));
  check_status(npusim_program_open("x", nullptr), NPUSIM_ERROR_INPUT);
  npusim_device* device = nullptr;
  check_status(npusim_device_open("tpu", nullptr, &device), NPUSIM_ERROR_DEVICE, "no device tpu");
  npusim_option option = {sizeof option, "threads", "many"};
  npusim_device_options options = NPUSIM_DEVICE_OPTIONS_INIT;
  options.options = &option;
  options.option_count = 1;
  check_status(npusim_device_open("cpu", &options, &device), NPUSIM_ERROR_DEVICE, "'many'");
  option.name = "colour";
  check_status(npusim_device_open("cpu", &options, &device), NPUSIM_ERROR_DEVICE, "colour");
  npusim_program_free(program);
}

}  // namespace
}  // namespace npusim::tests

int main() {
  using namespace npusim::tests;
  check(npusim_abi_version() == NPUSIM_ABI_VERSION, "built with its own header");
  test_loading();
  test_calls_by_order_and_name();
  test_calls_refuse_what_does_not_fit();
  test_handles();
  test_struct_sizes();
  test_callbacks();
  test_buffers();
  test_sizes();
  test_threads();
  test_language_model();
  return exit_code();
}
