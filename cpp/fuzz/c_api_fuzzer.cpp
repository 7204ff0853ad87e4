// Fuzzes the C interface: sequences of calls that the bytes choose, on handles that live, were
// freed, are null or of another type, with counts, sizes and texts that are wrong as often as
// right, and callbacks that cancel and throw. Whatever the sequence, a call returns a status with a
// sentence; the sanitizers watch for the rest. Memory that is lent is as large as it says.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "include/npusim/npusim.h"

namespace {

constexpr size_t kMostCalls = 64;

// Takes numbers from the input; zeros when it is at its end.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool done() const { return at_ == end_; }
  uint8_t byte() { return at_ == end_ ? 0 : *at_++; }
  size_t below(size_t count) { return byte() % count; }
  bool rarely() { return byte() % 16 == 15; }
  size_t index() { return rarely() ? ~size_t{0} : below(4); }
  int64_t number() {
    constexpr int64_t kEdges[] = {0, 1, 2, 3, 4, 8, -1, 9, 31, 32, INT64_MAX, INT64_MIN};
    return kEdges[below(std::size(kEdges))];
  }

 private:
  const uint8_t *at_, *end_;
};

std::vector<char> read_program(const char* name) {
  std::ifstream file(std::string(NPUSIM_SOURCE_DIR) + "/tests/cpp/programs/" + name,
                     std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::vector<char>& program_bytes(size_t which) {
  static const std::vector<char> kPrograms[] = {read_program("sum.npubin"),
                                                read_program("language_model.npubin"),
                                                read_program("paged_sum.npubin")};
  if (kPrograms[which].empty()) std::abort();  // the corpus is not there
  return kPrograms[which];
}

enum Type {
  kDevice,
  kProgram,
  kWeights,
  kState,
  kBuffer,
  kExecutor,
  kModel,
  kSession,
  kSampler,
  kEngine
};
constexpr size_t kTypes = 10;

std::atomic<int> callback_answer = 0;  // threads of engines ask as well
int called_back(void*) {
  if (callback_answer == 2) throw 7;
  return callback_answer;
}
int after_command(void* context, size_t) {
  return called_back(context);
}
int on_token(void* context, int64_t) {
  return called_back(context);
}
int on_event(void* context, const npusim_engine_event*) {
  return called_back(context);
}
int on_progress(void* context, int64_t, int64_t) {
  return called_back(context);
}
void released(void* context) {
  ++*static_cast<int*>(context);
}

class Sequence {
 public:
  explicit Sequence(Choices choices) : choose_(choices) {
    // A good start, so that most sequences come far.
    const char* one = "1";
    npusim_option threads = {sizeof threads, "threads", one};
    npusim_device_options options = NPUSIM_DEVICE_OPTIONS_INIT;
    options.options = &threads;
    options.option_count = 1;
    options.should_cancel = called_back;
    npusim_device* device = nullptr;
    npusim_device_open("cpu", &options, &device);
    keep(kDevice, device);
    for (size_t i = 0; i < 3; ++i) {
      npusim_program* program = nullptr;
      npusim_program_from_memory(program_bytes(i).data(), program_bytes(i).size(), &program);
      keep(kProgram, program);
      npusim_executor* executor = nullptr;
      npusim_executor_create(program, device, &executor);
      keep(kExecutor, executor);
    }
  }
  ~Sequence() {
    for (size_t type = 0; type < kTypes; ++type) {
      for (void* handle : handles_[type]) release(type, handle);
    }
    if (lent_ != given_back_) std::abort();  // each release is called once
  }

  void run() {
    for (size_t i = 0; i < kMostCalls && !choose_.done(); ++i) {
      callback_answer = static_cast<int>(choose_.below(8)) - 5;
      if (callback_answer < 0) callback_answer = 0;
      const npusim_status status = call();
      const bool known = std::strcmp(npusim_status_name(status), "unknown status") != 0;
      const bool told = status == NPUSIM_OK || npusim_last_error()[0] != '\0';
      if (!known || !told || status == NPUSIM_ERROR_INTERNAL) std::abort();
    }
  }

 private:
  void keep(size_t type, void* handle) {
    if (handle != nullptr) handles_[type].push_back(handle);
  }
  template <typename Handle>
  Handle* pick(Type type) {
    const size_t from = choose_.rarely() ? choose_.below(kTypes) : static_cast<size_t>(type);
    if (handles_[from].empty() || choose_.rarely()) return nullptr;
    return static_cast<Handle*>(handles_[from][choose_.below(handles_[from].size())]);
  }
  npusim_device* device() { return pick<npusim_device>(kDevice); }
  npusim_program* program() { return pick<npusim_program>(kProgram); }
  npusim_executor* executor() { return pick<npusim_executor>(kExecutor); }
  npusim_buffer* buffer() { return pick<npusim_buffer>(kBuffer); }
  npusim_state* state() { return pick<npusim_state>(kState); }

  void release(size_t type, void* handle);
  npusim_status call();
  npusim_status call_on_buffers();
  npusim_status call_on_programs();
  npusim_status call_on_executors();
  npusim_status call_on_language();
  npusim_status call_on_engines();
  npusim_status ask_of_programs();
  npusim_status ask_of_what_runs();
  npusim_status open_files();
  npusim_tensor tensor(bool named);
  template <typename Struct>
  Struct sized() {
    Struct made{};
    made.struct_size = choose_.rarely() ? choose_.byte() : sizeof made;
    // What a size beyond the struct would reach is not there: sizes that lie are the caller's.
    if (made.struct_size > sizeof made && made.struct_size % alignof(Struct) == 0) {
      made.struct_size = sizeof made;
    }
    return made;
  }

  Choices choose_;
  std::vector<void*> handles_[kTypes];
  std::vector<float> floats_ = std::vector<float>(32 * 32, 1.0f);
  int64_t shape_[2] = {}, sizes_[2] = {}, tokens_[64] = {};
  int lent_ = 0, given_back_ = 0;
};

void Sequence::release(size_t type, void* handle) {
  switch (type) {
    case kDevice:
      return npusim_device_free(static_cast<npusim_device*>(handle));
    case kProgram:
      return npusim_program_free(static_cast<npusim_program*>(handle));
    case kWeights:
      return npusim_weights_free(static_cast<npusim_weights*>(handle));
    case kState:
      return npusim_state_free(static_cast<npusim_state*>(handle));
    case kBuffer:
      return npusim_buffer_free(static_cast<npusim_buffer*>(handle));
    case kExecutor:
      return npusim_executor_free(static_cast<npusim_executor*>(handle));
    case kModel:
      return npusim_language_model_free(static_cast<npusim_language_model*>(handle));
    case kSession:
      return npusim_language_session_free(static_cast<npusim_language_session*>(handle));
    case kEngine:
      return npusim_engine_free(static_cast<npusim_engine*>(handle));
    default:
      return npusim_sampler_free(static_cast<npusim_sampler*>(handle));
  }
}

// A tensor over the floats there are, whose shape mostly fits its bytes.
npusim_tensor Sequence::tensor(bool named) {
  constexpr const char* kNames[] = {"x", "y", "table", "tokens", "length", "z"};
  npusim_tensor made = sized<npusim_tensor>();
  shape_[0] = choose_.rarely() ? choose_.number() : 1 + static_cast<int64_t>(choose_.below(8));
  shape_[1] = choose_.rarely() ? choose_.number() : 4;
  if (choose_.below(4) == 0) shape_[0] = shape_[1] = 32;
  made.name = named ? kNames[choose_.below(std::size(kNames))] : nullptr;
  made.data = floats_.data();
  made.bytes = choose_.rarely()
                   ? choose_.below(64)
                   : static_cast<size_t>(shape_[0]) * static_cast<size_t>(shape_[1]) * 4;
  if (made.bytes > floats_.size() * sizeof(float)) made.bytes = floats_.size() * sizeof(float);
  made.shape = choose_.rarely() ? nullptr : shape_;
  made.rank = choose_.rarely() ? choose_.below(3) : 2;
  made.dtype = choose_.rarely() ? static_cast<npusim_dtype>(choose_.number() % 64) : NPUSIM_FLOAT32;
  return made;
}

npusim_status Sequence::call() {
  switch (choose_.below(9)) {
    case 8:
      return call_on_engines();
    case 5:
      return ask_of_programs();
    case 6:
      return ask_of_what_runs();
    case 7:
      return open_files();
    case 0:
      return call_on_buffers();
    case 1:
      return call_on_programs();
    case 2:
      return call_on_executors();
    case 3:
      return call_on_language();
    default: {
      // Freed, and kept among those that calls choose from.
      const size_t type = choose_.below(kTypes);
      if (!handles_[type].empty() && choose_.below(3) == 0) {
        release(choose_.rarely() ? choose_.below(kTypes) : type,
                handles_[type][choose_.below(handles_[type].size())]);
      }
      return npusim_device_synchronize(device());
    }
  }
}

npusim_status Sequence::call_on_buffers() {
  npusim_buffer* made = nullptr;
  npusim_status status = NPUSIM_OK;
  const npusim_tensor given = tensor(false);
  switch (choose_.below(8)) {
    case 0:
      status = npusim_buffer_allocate(device(), given.dtype, given.shape, given.rank, &made);
      break;
    case 1:
      ++lent_;
      status = npusim_buffer_from_host(device(), &given, static_cast<npusim_copy>(choose_.below(4)),
                                       released, &given_back_, &made);
      break;
    case 2:
      status = npusim_buffer_for(executor(), choose_.index(), static_cast<int>(choose_.below(3)),
                                 choose_.index(), shape_, choose_.below(3), &made);
      break;
    case 3: {
      struct DLManagedTensor* lent = nullptr;
      status = npusim_buffer_to_dlpack(buffer(), nullptr, &lent);
      if (status != NPUSIM_OK) return status;
      status = npusim_buffer_from_dlpack(device(), lent, static_cast<npusim_copy>(choose_.below(4)),
                                         &made);
      if (status != NPUSIM_OK) {  // it still is ours: a device that lives takes it over
        npusim_device* own = nullptr;
        npusim_device_open("cpu", nullptr, &own);
        npusim_buffer_from_dlpack(own, lent, 0, &made);
        npusim_device_free(own);
      }
      break;
    }
    case 4:
      return npusim_buffer_copy(buffer(), buffer());
    case 5:
      return npusim_buffer_read(buffer(), floats_.data(), given.bytes);
    case 6:
      return npusim_buffer_write(buffer(), floats_.data(), given.bytes);
    default: {
      npusim_buffer_info info = sized<npusim_buffer_info>();
      void* data = nullptr;
      status = npusim_buffer_get_info(buffer(), &info);
      return choose_.rarely() ? npusim_buffer_map(buffer(), &data) : status;
    }
  }
  keep(kBuffer, made);
  return status;
}

npusim_status Sequence::call_on_programs() {
  const size_t method = choose_.index(), index = choose_.index();
  const auto side = static_cast<npusim_side>(choose_.below(3));
  switch (choose_.below(9)) {
    case 0: {
      npusim_program_info info = sized<npusim_program_info>();
      return npusim_program_get_info(program(), &info);
    }
    case 1: {
      npusim_tensor_info info = sized<npusim_tensor_info>();
      return npusim_program_get_tensor(program(), method, side, index, &info);
    }
    case 2: {
      npusim_command_info info = sized<npusim_command_info>();
      return npusim_program_get_command(program(), method, index, &info);
    }
    case 3: {
      npusim_symbol symbol = sized<npusim_symbol>();
      return npusim_program_get_symbol(program(), method, index, &symbol);
    }
    case 4: {
      const npusim_tensor given = tensor(false);
      const int64_t* shapes[] = {given.shape, shape_};
      const size_t ranks[] = {given.rank, 2};
      return npusim_program_bind(program(), method, shapes, ranks, choose_.below(3), sizes_,
                                 choose_.below(3));
    }
    case 5:
      sizes_[0] = choose_.number();
      return npusim_program_shape_at(program(), method, side, index, sizes_, choose_.below(3),
                                     shape_, choose_.below(3));
    case 6: {
      npusim_tensor_info info = sized<npusim_tensor_info>();
      return choose_.below(2) == 0 ? npusim_program_get_weight(program(), index, &info)
                                   : npusim_program_get_state(program(), index, &info);
    }
    case 7: {
      npusim_weights_options options = sized<npusim_weights_options>();
      if (choose_.below(2) == 0) options.progress = on_progress;
      options.copy = static_cast<int32_t>(choose_.below(2));
      const npusim_tensor given = tensor(true);
      npusim_weights* made = nullptr;
      ++lent_;
      const npusim_status status = npusim_weights_from_tensors(
          program(), device(), &given, choose_.below(2), &options, released, &given_back_, &made);
      keep(kWeights, made);
      return status;
    }
    default: {
      npusim_state* made = nullptr;
      const npusim_status status = choose_.below(2) == 0
                                       ? npusim_state_create(program(), device(), &made)
                                       : npusim_state_copy(state(), &made);
      keep(kState, made);
      if (choose_.below(2) == 0) return status;
      return npusim_state_read(state(), "position", tokens_, choose_.below(2) * 8);
    }
  }
}

npusim_status Sequence::call_on_executors() {
  npusim_run_options options = sized<npusim_run_options>();
  double seconds[8] = {};
  if (!handles_[kWeights].empty()) options.weights = pick<npusim_weights>(kWeights);
  if (choose_.below(4) == 0) options.state = state();
  if (choose_.below(4) == 0) options.after_command = after_command;
  if (choose_.below(4) == 0) options.seconds = seconds;
  options.second_count = choose_.below(9);
  options.enqueue = choose_.rarely();
  options.stream = choose_.rarely();
  switch (choose_.below(5)) {
    case 0:
    case 1: {
      const bool named = choose_.below(4) == 0;
      const npusim_tensor in[] = {tensor(named), tensor(named)};
      npusim_tensor out = tensor(false);
      std::vector<float> results(floats_.size());
      out.data = results.data();
      out.shape = nullptr;
      return npusim_executor_call(executor(), choose_.index(), in, choose_.rarely() ? 1 : 2, &out,
                                  1, &options);
    }
    case 2: {
      npusim_buffer* in[] = {buffer(), buffer()};
      npusim_buffer* out = buffer();
      sizes_[0] = choose_.number();
      options.sizes = sizes_;
      options.size_count = choose_.below(2);
      return npusim_executor_run(executor(), choose_.index(), in, 2, &out, 1, &options);
    }
    case 3: {
      size_t needed = 0;
      npusim_executor_settle(executor(), choose_.index());
      npusim_executor_write_buffer(executor(), static_cast<uint32_t>(choose_.index()),
                                   floats_.data(), choose_.below(64));
      return npusim_executor_read_buffer(executor(), static_cast<uint32_t>(choose_.index()),
                                         floats_.data(), choose_.below(64), &needed);
    }
    default:
      return npusim_executor_reset(executor());
  }
}

npusim_status Sequence::call_on_language() {
  npusim_status status = NPUSIM_OK;
  const auto session = pick<npusim_language_session>(kSession);
  const auto sampler = pick<npusim_sampler>(kSampler);
  for (int64_t& token : tokens_) token = choose_.rarely() ? choose_.number() : 3;
  switch (choose_.below(9)) {
    case 0: {
      npusim_language_model* made = nullptr;
      const auto weights = pick<npusim_weights>(kWeights);
      status = npusim_language_model_create(program(), device(), weights, &made);
      keep(kModel, made);
      return status;
    }
    case 1: {
      npusim_language_session* made = nullptr;
      status = npusim_language_session_create(pick<npusim_language_model>(kModel), &made);
      keep(kSession, made);
      return status;
    }
    case 2: {
      npusim_sampler_options options = sized<npusim_sampler_options>();
      options.temperature = static_cast<double>(choose_.below(3)) - (choose_.rarely() ? 3 : 0);
      options.top_k = choose_.number();
      npusim_sampler* made = nullptr;
      status = npusim_sampler_create(&options, &made);
      keep(kSampler, made);
      return status;
    }
    case 3:
      return npusim_language_session_append(session, tokens_, choose_.below(30), called_back,
                                            nullptr);
    case 4: {
      npusim_generation_options options = sized<npusim_generation_options>();
      options.max_new_tokens = choose_.number();
      options.on_token = on_token;
      npusim_generation made = sized<npusim_generation>();
      return npusim_language_session_generate(session, sampler, &options, &made);
    }
    case 5: {
      npusim_language_session* made = nullptr;
      status = npusim_language_session_fork(session, &made);
      keep(kSession, made);
      return status;
    }
    case 6:
      return npusim_language_session_rewind(session, choose_.number());
    case 7: {
      double scores[64];
      return npusim_language_session_score(session, tokens_, choose_.below(8), scores);
    }
    default: {
      int64_t token = 0;
      npusim_language_session_logits(session, floats_.data(), choose_.rarely() ? 1 : 32);
      npusim_language_session_tokens(session, choose_.number(), tokens_, choose_.below(32));
      return npusim_language_session_step(session, sampler, 0, &token);
    }
  }
}

npusim_status Sequence::call_on_engines() {
  const auto engine = pick<npusim_engine>(kEngine);
  for (int64_t& token : tokens_) token = choose_.rarely() ? choose_.number() : 3;
  uint64_t request = 1 + choose_.below(4);
  switch (choose_.below(9)) {
    case 0: {
      npusim_engine_options options = sized<npusim_engine_options>();
      options.max_requests = choose_.number();
      options.max_step_tokens = choose_.number();
      options.max_waiting = choose_.number();
      options.step_seconds = static_cast<double>(choose_.below(3)) - (choose_.rarely() ? 3 : 0);
      options.no_prefix_cache = static_cast<int32_t>(choose_.below(2));
      npusim_engine* made = nullptr;
      const npusim_status status =
          npusim_engine_create(program(), device(), nullptr, &options, &made);
      keep(kEngine, made);
      return status;
    }
    case 1:
    case 2: {
      npusim_request_options options = sized<npusim_request_options>();
      options.max_tokens = choose_.number();
      options.min_tokens = choose_.rarely() ? choose_.number() : 0;
      options.temperature = static_cast<double>(choose_.below(3)) - (choose_.rarely() ? 3 : 0);
      options.stop_tokens = options.bias_tokens = tokens_;
      options.stop_token_count = choose_.below(3);
      options.bias_values = choose_.rarely() ? nullptr : floats_.data();
      options.bias_count = choose_.below(3);
      options.priority = choose_.number();
      options.salt = choose_.rarely() ? "salt" : nullptr;
      options.masked = choose_.rarely();
      options.log_probabilities = choose_.rarely();
      options.follows = choose_.rarely() ? request : 0;
      return npusim_engine_submit(engine, tokens_, choose_.below(45), &options, &request);
    }
    case 3:
      return npusim_engine_poll(engine, 1e-3 * static_cast<double>(choose_.below(3)), on_event,
                                nullptr);
    case 4:
      return npusim_engine_cancel(engine, request);
    case 5: {
      const uint8_t mask[48] = {0, 1, 1};
      return npusim_engine_allow(engine, request, mask, choose_.rarely() ? 3 : sizeof mask);
    }
    case 6: {
      npusim_engine_info info = sized<npusim_engine_info>();
      return npusim_engine_get_info(engine, &info);
    }
    case 7: {
      npusim_engine_stats stats = sized<npusim_engine_stats>();
      return npusim_engine_get_stats(engine, &stats);
    }
    default: {
      int32_t has_ended = 0;
      if (choose_.rarely()) return npusim_engine_close(engine);
      return choose_.rarely() ? npusim_engine_drain(engine, 1e-3, &has_ended) : NPUSIM_OK;
    }
  }
}

npusim_status Sequence::ask_of_programs() {
  constexpr const char* kNames[] = {nullptr, "", "forward", "x", "decode", "nothing"};
  const char* name = kNames[choose_.below(std::size(kNames))];
  size_t index = 0;
  switch (choose_.below(6)) {
    case 0: {
      npusim_device_info info = sized<npusim_device_info>();
      return npusim_device_get_info(device(), &info);
    }
    case 1:
      return npusim_device_order(device(), choose_.below(2), choose_.below(2));
    case 2:
      return npusim_program_find_method(program(), name, &index);
    case 3: {
      npusim_method_info info = sized<npusim_method_info>();
      return npusim_program_get_method(program(), choose_.index(), &info);
    }
    case 4:
      return npusim_program_find_tensor(program(), choose_.index(), choose_.index() % 3, name,
                                        &index);
    default: {
      const auto dtype = static_cast<npusim_dtype>(choose_.number() % 64);
      const bool named = npusim_dtype_name(dtype) != nullptr;
      if (named != (npusim_dtype_size(dtype) != 0)) std::abort();
      if (npusim_device_name(npusim_device_count()) != nullptr) std::abort();
      if (npusim_abi_version() != NPUSIM_ABI_VERSION || npusim_version()[0] == 0) std::abort();
      return NPUSIM_OK;
    }
  }
}

npusim_status Sequence::ask_of_what_runs() {
  const size_t count = choose_.below(3);
  sizes_[0] = choose_.number();
  switch (choose_.below(8)) {
    case 0: {
      npusim_weights_info info = sized<npusim_weights_info>();
      const auto weights = pick<npusim_weights>(kWeights);
      const npusim_status status = npusim_weights_get_info(weights, &info);
      return status == NPUSIM_OK ? npusim_weights_check(weights) : status;
    }
    case 1: {
      // What lies at an address is the caller's to ensure: that much does.
      const int64_t shape[] = {8, static_cast<int64_t>(choose_.below(5))};
      npusim_buffer* made = nullptr;
      ++lent_;
      const npusim_status status = npusim_buffer_at(
          device(), NPUSIM_FLOAT32, shape, choose_.below(3),
          reinterpret_cast<uintptr_t>(floats_.data()), released, &given_back_, &made);
      keep(kBuffer, made);
      return status;
    }
    case 2:
      tokens_[0] = choose_.number();
      return npusim_state_write(state(), choose_.rarely() ? nullptr : "position", tokens_,
                                choose_.below(2) * 8);
    case 3:
      return npusim_executor_prepare(executor(), choose_.index(), sizes_, count);
    case 4: {
      const char* name = nullptr;
      return npusim_executor_implementation(executor(), choose_.index(), choose_.index(), &name);
    }
    case 5: {
      npusim_language_model_info info = sized<npusim_language_model_info>();
      return npusim_language_model_get_info(pick<npusim_language_model>(kModel), &info);
    }
    case 6: {
      int64_t position = 0;
      return npusim_language_session_position(pick<npusim_language_session>(kSession), &position);
    }
    default: {
      int64_t token = 0;
      return npusim_sampler_sample(pick<npusim_sampler>(kSampler), floats_.data(),
                                   choose_.below(33), tokens_, choose_.below(8), &token);
    }
  }
}

npusim_status Sequence::open_files() {
  // Of this process alone: several may fuzz at once.
  static const std::string kSaved = (std::filesystem::temp_directory_path() /
                                     ("npusim_fuzz_" + std::to_string(std::random_device()())))
                                        .string();
  const std::string programs = std::string(NPUSIM_SOURCE_DIR) + "/tests/cpp/programs";
  const std::string paths[] = {programs, programs + "/sum.npubin", programs + "/nothing", kSaved};
  const char* path = choose_.rarely() ? nullptr : paths[choose_.below(std::size(paths))].c_str();
  const auto session = pick<npusim_language_session>(kSession);
  switch (choose_.below(5)) {
    case 0: {
      npusim_program* made = nullptr;
      const npusim_status status = npusim_program_open(path, &made);
      keep(kProgram, made);
      return status;
    }
    case 1: {
      npusim_weights_options options = sized<npusim_weights_options>();
      npusim_weights* made = nullptr;
      const npusim_status status = npusim_weights_open(program(), device(), path, &options, &made);
      keep(kWeights, made);
      return status;
    }
    case 2:
      return npusim_language_session_save(session, kSaved.c_str());
    case 3:
      return npusim_weights_pack(pick<npusim_weights>(kWeights), kSaved.c_str());
    default: {
      const npusim_status status = npusim_language_session_load(session, path);
      std::filesystem::remove(kSaved);
      return status;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Sequence(Choices(data, size)).run();
  return 0;
}
