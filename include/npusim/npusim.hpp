// The C++17 face of npusim.h: handles that free themselves, values for structs, and exceptions for
// statuses. Header-only, over the C interface alone, so it works with any compiler and standard
// library, whatever the shared library was built with. npusim.h has the meaning of everything; what
// is not here is called there, with `get()`.
//
// With exceptions a call that fails throws npusim::Error. Without them (-fno-exceptions, or
// NPUSIM_NO_EXCEPTIONS defined) it calls the handler of set_error_handler, which must not return,
// or std::abort() where there is none.
#ifndef NPUSIM_NPUSIM_HPP
#define NPUSIM_NPUSIM_HPP

#include <npusim/npusim.h>

#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if !defined(NPUSIM_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define NPUSIM_NO_EXCEPTIONS
#endif
#ifndef NPUSIM_NO_EXCEPTIONS
#include <stdexcept>
#endif

namespace npusim {

#ifndef NPUSIM_NO_EXCEPTIONS
class Error : public std::runtime_error {
 public:
  Error(npusim_status status, const char* message) : std::runtime_error(message), status_(status) {}
  npusim_status status() const noexcept { return status_; }

 private:
  npusim_status status_;
};
[[noreturn]] inline void fail(npusim_status status, const char* message) {
  throw Error(status, message);
}
#else
using ErrorHandler = void (*)(npusim_status status, const char* message);
inline ErrorHandler& error_handler() {
  static ErrorHandler handler = nullptr;
  return handler;
}
inline void set_error_handler(ErrorHandler handler) {
  error_handler() = handler;
}
[[noreturn]] inline void fail(npusim_status status, const char* message) {
  if (error_handler() != nullptr) error_handler()(status, message);
  std::abort();
}
#endif
inline void check(npusim_status status) {
  if (status != NPUSIM_OK) fail(status, npusim_last_error());
}
// That the library is one of this header: everything begins with a device or a program.
inline void check_library() {
  if (npusim_abi_version() == NPUSIM_ABI_VERSION) return;
  const std::string message =
      "the libnpusim that was found has version " + std::to_string(npusim_abi_version()) +
      " of the C interface, and this program was built for version " +
      std::to_string(NPUSIM_ABI_VERSION) + ". Install npusim of its headers";
  fail(NPUSIM_ERROR_VERSION, message.c_str());
}

using Shape = std::vector<int64_t>;

namespace detail {

template <typename Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof(Struct);
  return made;
}

template <typename T>
struct Free;
#define NPUSIM_FREE(type)                                                         \
  template <>                                                                     \
  struct Free<npusim_##type> {                                                    \
    void operator()(npusim_##type* p) const noexcept { npusim_##type##_free(p); } \
  };
NPUSIM_FREE(device)
NPUSIM_FREE(program)
NPUSIM_FREE(weights)
NPUSIM_FREE(state)
NPUSIM_FREE(buffer)
NPUSIM_FREE(executor)
NPUSIM_FREE(language_model)
NPUSIM_FREE(language_session)
NPUSIM_FREE(sampler)
NPUSIM_FREE(engine)
#undef NPUSIM_FREE

template <typename T>
class Handle {
 public:
  explicit Handle(T* handle) : handle_(handle) {}
  T* get() const noexcept { return handle_.get(); }

 private:
  std::unique_ptr<T, Free<T>> handle_;
};

// Calls `make` with where a handle goes.
template <typename T, typename Make>
T* made(const Make& make) {
  T* out = nullptr;
  check(make(&out));
  return out;
}

}  // namespace detail

// The npusim_dtype of a C++ type.
template <typename T>
constexpr npusim_dtype dtype_of() {
  if constexpr (std::is_same_v<T, float>) {
    return NPUSIM_FLOAT32;
  } else if constexpr (std::is_same_v<T, double>) {
    return NPUSIM_FLOAT64;
  } else if constexpr (std::is_same_v<T, bool>) {
    return NPUSIM_BOOL;
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    return NPUSIM_UINT8;
  } else {
    static_assert(std::is_integral_v<T> && std::is_signed_v<T>, "npusim has no such dtype");
    return sizeof(T) == 8   ? NPUSIM_INT64
           : sizeof(T) == 4 ? NPUSIM_INT32
           : sizeof(T) == 2 ? NPUSIM_INT16
                            : NPUSIM_INT8;
  }
}

// A dense tensor in memory of the caller, which outlives it; with a name, or in its place.
class Tensor {
 public:
  template <typename T>
  Tensor(T* data, Shape shape, const char* name = nullptr)
      : data_(const_cast<std::remove_const_t<T>*>(data)),
        shape_(std::move(shape)),
        name_(name),
        dtype_(dtype_of<std::remove_const_t<T>>()) {}

  npusim_tensor view() const {
    auto tensor = detail::sized<npusim_tensor>();
    tensor.name = name_;
    tensor.data = data_;
    tensor.bytes = npusim_dtype_size(dtype_);
    for (const int64_t extent : shape_) tensor.bytes *= static_cast<size_t>(extent);
    tensor.shape = shape_.data();
    tensor.rank = shape_.size();
    tensor.dtype = dtype_;
    return tensor;
  }

 private:
  void* data_;
  Shape shape_;
  const char* name_;
  npusim_dtype dtype_;
};

class Device : public detail::Handle<npusim_device> {
 public:
  using Options = std::initializer_list<std::pair<const char*, std::string>>;
  // Device("cpu", {{"threads", "4"}})
  explicit Device(const char* name = "cpu", Options options = {}) : Handle(open(name, options)) {}

  npusim_device_info info() const {
    auto info = detail::sized<npusim_device_info>();
    check(npusim_device_get_info(get(), &info));
    return info;
  }
  void synchronize() const { check(npusim_device_synchronize(get())); }

 private:
  static npusim_device* open(const char* name, Options options) {
    check_library();
    std::vector<npusim_option> given;
    for (const auto& option : options) {
      given.push_back({sizeof(npusim_option), option.first, option.second.c_str()});
    }
    auto all = detail::sized<npusim_device_options>();
    all.options = given.data();
    all.option_count = given.size();
    return detail::made<npusim_device>(
        [&](npusim_device** out) { return npusim_device_open(name, &all, out); });
  }
};

class Program : public detail::Handle<npusim_program> {
 public:
  explicit Program(const char* path)
      : Handle(detail::made<npusim_program>([&](npusim_program** out) {
          return check_library(), npusim_program_open(path, out);
        })) {}
  explicit Program(const std::string& path) : Program(path.c_str()) {}
  Program(const void* data, size_t bytes)
      : Handle(detail::made<npusim_program>([&](npusim_program** out) {
          return check_library(), npusim_program_from_memory(data, bytes, out);
        })) {}

  npusim_program_info info() const {
    auto info = detail::sized<npusim_program_info>();
    check(npusim_program_get_info(get(), &info));
    return info;
  }
  npusim_method_info method(size_t index) const {
    auto info = detail::sized<npusim_method_info>();
    check(npusim_program_get_method(get(), index, &info));
    return info;
  }
  size_t find_method(const char* name) const {
    size_t index = 0;
    check(npusim_program_find_method(get(), name, &index));
    return index;
  }
  npusim_tensor_info input(size_t index, size_t method = 0) const {
    return tensor(method, NPUSIM_INPUT, index);
  }
  npusim_tensor_info output(size_t index, size_t method = 0) const {
    return tensor(method, NPUSIM_OUTPUT, index);
  }
  npusim_symbol symbol(size_t index, size_t method = 0) const {
    auto symbol = detail::sized<npusim_symbol>();
    check(npusim_program_get_symbol(get(), method, index, &symbol));
    return symbol;
  }

 private:
  npusim_tensor_info tensor(size_t method, npusim_side side, size_t index) const {
    auto info = detail::sized<npusim_tensor_info>();
    check(npusim_program_get_tensor(get(), method, side, index, &info));
    return info;
  }
};

class Weights : public detail::Handle<npusim_weights> {
 public:
  Weights(const Program& program, const Device& device, const std::string& path,
          const npusim_weights_options* options = nullptr)
      : Handle(detail::made<npusim_weights>([&](npusim_weights** out) {
          return npusim_weights_open(program.get(), device.get(), path.c_str(), options, out);
        })) {}
  // Tensors with names, which outlive the weights.
  Weights(const Program& program, const Device& device, const std::vector<Tensor>& tensors,
          const npusim_weights_options* options = nullptr)
      : Handle(detail::made<npusim_weights>([&](npusim_weights** out) {
          std::vector<npusim_tensor> views;
          for (const Tensor& tensor : tensors) views.push_back(tensor.view());
          return npusim_weights_from_tensors(program.get(), device.get(), views.data(),
                                             views.size(), options, nullptr, nullptr, out);
        })) {}

  // Writes what loading prepared, for programs that are started again (npusim_weights_pack).
  void pack(const std::string& path) const { check(npusim_weights_pack(get(), path.c_str())); }
  // Why packed weights had to be prepared anew; empty where they had not.
  std::string note() const {
    auto info = detail::sized<npusim_weights_info>();
    check(npusim_weights_get_info(get(), &info));
    return info.note;
  }
};

class State : public detail::Handle<npusim_state> {
 public:
  State(const Program& program, const Device& device)
      : Handle(detail::made<npusim_state>([&](npusim_state** out) {
          return npusim_state_create(program.get(), device.get(), out);
        })) {}
  State copy() const {
    return State(detail::made<npusim_state>(
        [&](npusim_state** out) { return npusim_state_copy(get(), out); }));
  }

 private:
  using Handle::Handle;
};

class Executor : public detail::Handle<npusim_executor> {
 public:
  Executor(const Program& program, const Device& device)
      : Handle(detail::made<npusim_executor>([&](npusim_executor** out) {
          return npusim_executor_create(program.get(), device.get(), out);
        })) {}

  // Runs a method over tensors of the host; `weights` and `state` may be null.
  void call(const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            const Weights* weights = nullptr, const State* state = nullptr,
            size_t method = 0) const {
    std::vector<npusim_tensor> in, out;
    for (const Tensor& tensor : inputs) in.push_back(tensor.view());
    for (const Tensor& tensor : outputs) out.push_back(tensor.view());
    auto options = detail::sized<npusim_run_options>();
    options.weights = weights == nullptr ? nullptr : weights->get();
    options.state = state == nullptr ? nullptr : state->get();
    check(npusim_executor_call(get(), method, in.data(), in.size(), out.data(), out.size(),
                               &options));
  }
};

class Sampler : public detail::Handle<npusim_sampler> {
 public:
  static npusim_sampler_options options() { return detail::sized<npusim_sampler_options>(); }
  explicit Sampler(const npusim_sampler_options& given = options())
      : Handle(detail::made<npusim_sampler>(
            [&](npusim_sampler** out) { return npusim_sampler_create(&given, out); })) {}
};

class LanguageModel : public detail::Handle<npusim_language_model> {
 public:
  LanguageModel(const Program& program, const Device& device, const Weights* weights = nullptr)
      : Handle(detail::made<npusim_language_model>([&](npusim_language_model** out) {
          return npusim_language_model_create(program.get(), device.get(),
                                              weights == nullptr ? nullptr : weights->get(), out);
        })) {}
  npusim_language_model_info info() const {
    auto info = detail::sized<npusim_language_model_info>();
    check(npusim_language_model_get_info(get(), &info));
    return info;
  }
};

class LanguageSession : public detail::Handle<npusim_language_session> {
 public:
  explicit LanguageSession(const LanguageModel& model)
      : Handle(detail::made<npusim_language_session>([&](npusim_language_session** out) {
          return npusim_language_session_create(model.get(), out);
        })) {}

  void append(const std::vector<int64_t>& tokens) const {
    check(npusim_language_session_append(get(), tokens.data(), tokens.size(), nullptr, nullptr));
  }
  int64_t position() const {
    int64_t position = 0;
    check(npusim_language_session_position(get(), &position));
    return position;
  }
  std::vector<int64_t> tokens(int64_t first = 0) const {
    const int64_t count = position() - first;
    std::vector<int64_t> out(count > 0 ? static_cast<size_t>(count) : 0);
    check(npusim_language_session_tokens(get(), first, out.data(), out.size()));
    return out;
  }
  static npusim_generation_options options() { return detail::sized<npusim_generation_options>(); }
  // `on_token` sees each new token, and ends the text by returning false.
  npusim_generation generate(const Sampler& sampler, npusim_generation_options given = options(),
                             const std::function<bool(int64_t)>& on_token = {}) const {
    auto made = detail::sized<npusim_generation>();
    if (on_token) {
      given.context = const_cast<std::function<bool(int64_t)>*>(&on_token);
      given.on_token = [](void* context, int64_t token) {
        return (*static_cast<const std::function<bool(int64_t)>*>(context))(token) ? 0 : 1;
      };
    }
    check(npusim_language_session_generate(get(), sampler.get(), &given, &made));
    return made;
  }
  LanguageSession fork() const {
    return LanguageSession(detail::made<npusim_language_session>(
        [&](npusim_language_session** out) { return npusim_language_session_fork(get(), out); }));
  }
  void rewind(int64_t position) const { check(npusim_language_session_rewind(get(), position)); }
  void save(const std::string& path) const {
    check(npusim_language_session_save(get(), path.c_str()));
  }
  void load(const std::string& path) const {
    check(npusim_language_session_load(get(), path.c_str()));
  }

 private:
  using Handle::Handle;
};

// Many requests to a language model; npusim.h has the words.
class Engine : public detail::Handle<npusim_engine> {
 public:
  using OnEvent = std::function<bool(const npusim_engine_event&)>;

  static npusim_engine_options options() { return detail::sized<npusim_engine_options>(); }
  static npusim_request_options request() { return detail::sized<npusim_request_options>(); }
  Engine(const Program& program, const Device& device, const Weights* weights = nullptr,
         const npusim_engine_options& given = options())
      : Handle(detail::made<npusim_engine>([&](npusim_engine** out) {
          return npusim_engine_create(program.get(), device.get(),
                                      weights == nullptr ? nullptr : weights->get(), &given, out);
        })) {}

  npusim_engine_info info() const {
    auto info = detail::sized<npusim_engine_info>();
    check(npusim_engine_get_info(get(), &info));
    return info;
  }
  npusim_engine_stats stats() const {
    auto stats = detail::sized<npusim_engine_stats>();
    check(npusim_engine_get_stats(get(), &stats));
    return stats;
  }
  uint64_t submit(const std::vector<int64_t>& tokens,
                  const npusim_request_options& given = request()) const {
    uint64_t request = 0;
    check(npusim_engine_submit(get(), tokens.data(), tokens.size(), &given, &request));
    return request;
  }
  void cancel(uint64_t request) const { check(npusim_engine_cancel(get(), request)); }
  void allow(uint64_t request, const std::vector<uint8_t>& mask) const {
    check(npusim_engine_allow(get(), request, mask.data(), mask.size()));
  }
  // `on_event` returns false when it wants no more; the other events come with the next poll.
  void poll(double seconds, const OnEvent& on_event) const {
    struct Watched {
      const OnEvent& on_event;
      bool wants_more;
    } watched{on_event, true};
    const auto call = [](void* context, const npusim_engine_event* event) {
      auto& of = *static_cast<Watched*>(context);
      of.wants_more = of.on_event(*event);
      return of.wants_more ? 0 : 1;
    };
    const npusim_status status = npusim_engine_poll(get(), seconds, call, &watched);
    if (watched.wants_more) check(status);
  }
  bool drain(double seconds) const {
    int32_t has_ended = 0;
    check(npusim_engine_drain(get(), seconds, &has_ended));
    return has_ended != 0;
  }
  void close() const { check(npusim_engine_close(get())); }
};

}  // namespace npusim

#endif
