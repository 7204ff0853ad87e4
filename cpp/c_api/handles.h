// Handles are names, not addresses: a slot of a table, how often the slot was used before, and the
// type. So a handle that was freed, or is of another type, or never was one, is found out without
// being followed, and a call keeps its objects alive while another thread frees their handles.
#pragma once

#include <cstdint>
#include <memory>

#include "include/npusim/npusim.h"

namespace npusim::c_api {

enum class Kind : uint8_t {
  kDevice = 1,
  kProgram,
  kWeights,
  kState,
  kBuffer,
  kExecutor,
  kLanguageModel,
  kLanguageSession,
  kSampler,
  kEngine,
};

uintptr_t add_object(Kind kind, std::shared_ptr<void> object);
// Null where there is no such object, or it is of another kind.
std::shared_ptr<void> find_object(uintptr_t handle, Kind kind) noexcept;
// Does nothing where there is no such object.
void drop_object(uintptr_t handle, Kind kind) noexcept;

struct DeviceObject;
struct ProgramObject;
struct WeightsObject;
struct StateObject;
struct BufferObject;
struct ExecutorObject;
struct LanguageModelObject;
struct LanguageSessionObject;
struct SamplerObject;
struct EngineObject;

// What is behind a handle of a type, and what people call it.
template <typename Handle>
struct ObjectOf;
template <typename Object, Kind kind>
struct Behind {
  using type = Object;
  static constexpr Kind kKind = kind;
};
template <>
struct ObjectOf<npusim_device> : Behind<DeviceObject, Kind::kDevice> {
  static constexpr const char* kName = "device";
};
template <>
struct ObjectOf<npusim_program> : Behind<ProgramObject, Kind::kProgram> {
  static constexpr const char* kName = "program";
};
template <>
struct ObjectOf<npusim_weights> : Behind<WeightsObject, Kind::kWeights> {
  static constexpr const char* kName = "weights";
};
template <>
struct ObjectOf<npusim_state> : Behind<StateObject, Kind::kState> {
  static constexpr const char* kName = "state";
};
template <>
struct ObjectOf<npusim_buffer> : Behind<BufferObject, Kind::kBuffer> {
  static constexpr const char* kName = "buffer";
};
template <>
struct ObjectOf<npusim_executor> : Behind<ExecutorObject, Kind::kExecutor> {
  static constexpr const char* kName = "executor";
};
template <>
struct ObjectOf<npusim_language_model> : Behind<LanguageModelObject, Kind::kLanguageModel> {
  static constexpr const char* kName = "language model";
};
template <>
struct ObjectOf<npusim_language_session> : Behind<LanguageSessionObject, Kind::kLanguageSession> {
  static constexpr const char* kName = "language session";
};
template <>
struct ObjectOf<npusim_sampler> : Behind<SamplerObject, Kind::kSampler> {
  static constexpr const char* kName = "sampler";
};
template <>
struct ObjectOf<npusim_engine> : Behind<EngineObject, Kind::kEngine> {
  static constexpr const char* kName = "engine";
};

}  // namespace npusim::c_api
