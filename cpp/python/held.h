// How the runtime's objects arrive from Python: never null, and never before their __init__ ran.
//
// pybind11 by itself passes None as a null pointer, and gives memory that nothing was constructed
// in for an object that only has been through `__new__`. The casters here refuse both, for every
// argument of every function, `self` included; what may be None says so: std::optional<shared_ptr>.
// Every file that binds functions includes this one, so that all casters are the same.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>

namespace npusim {
class Device;
class Executor;
class LanguageModel;
class LanguageSession;
class Program;
class Sampler;
class State;
class Weights;
struct DeviceBuffer;
}  // namespace npusim

namespace npusim::python {

class Arrival;
class ServingEngine;
class Session;

template <typename T, typename... Ts>
constexpr bool kIsOneOf = (std::is_same_v<T, Ts> || ...);

template <typename T>
concept Held = kIsOneOf<T, Device, Executor, LanguageModel, LanguageSession, Program, Sampler,
                        State, Weights, Arrival, ServingEngine, Session, DeviceBuffer>;

// An argument that may be None.
template <Held T>
using Maybe = std::optional<std::shared_ptr<T>>;

template <Held T>
T* pointer(const Maybe<T>& given) {
  return given ? given->get() : nullptr;
}

// Of classes whose objects never change: a copy is the object itself.
template <typename Class>
void copy_as_itself(Class& type) {
  type.def("__copy__", [](const pybind11::object& self) { return self; });
  type.def(
      "__deepcopy__", [](const pybind11::object& self, const pybind11::object&) { return self; },
      pybind11::arg("memo"));
}

// Throws TypeError for an object of the type whose constructor has not run.
inline void require_constructed(pybind11::handle object, const pybind11::detail::type_info& type) {
  PyTypeObject* given = Py_TYPE(object.ptr());
  if (given != type.type && PyType_IsSubtype(given, type.type) == 0) return;
  auto* instance = reinterpret_cast<pybind11::detail::instance*>(object.ptr());
  if (instance->get_value_and_holder(&type).holder_constructed()) return;
  throw pybind11::type_error("the __init__ of this " + std::string(given->tp_name) +
                             " was not called");
}

}  // namespace npusim::python

namespace pybind11::detail {

template <typename T>
class type_caster<T, std::enable_if_t<npusim::python::Held<T>>> : public type_caster_base<T> {
 public:
  bool load(handle source, bool convert) {
    if (source.is_none()) return false;
    if (this->typeinfo != nullptr) npusim::python::require_constructed(source, *this->typeinfo);
    return type_caster_base<T>::load(source, convert);
  }
};

template <npusim::python::Held T>
class type_caster<std::shared_ptr<T>> : public copyable_holder_caster<T, std::shared_ptr<T>> {
  using Base = copyable_holder_caster<T, std::shared_ptr<T>>;

 public:
  bool load(handle source, bool convert) {
    if (source.is_none()) return false;
    if (this->typeinfo != nullptr) npusim::python::require_constructed(source, *this->typeinfo);
    return Base::load(source, convert);
  }
};

}  // namespace pybind11::detail
