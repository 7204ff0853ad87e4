// What module.cpp assembles the Python module from.
#pragma once

#include <pybind11/pybind11.h>

#include "cpp/python/held.h"
#include "cpp/runtime/error.h"

namespace npusim::python {

void bind_device(pybind11::module_& module);
void bind_buffer(pybind11::module_& module);
void bind_program(pybind11::module_& module);
void bind_executor(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_state(pybind11::module_& module);
void bind_sampler(pybind11::module_& module);
void bind_simulate(pybind11::module_& module);
void bind_language_model(pybind11::module_& module);
void bind_engine(pybind11::module_& module);

// The class of npusim.errors that a code stands for.
const char* class_of(ErrorCode code);
// An exception of the class of npusim.errors that the code stands for.
pybind11::object python_error(const Error& error);
// Sets it as the pending Python error.
void set_python_error(const Error& error);

}  // namespace npusim::python
