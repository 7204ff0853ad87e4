// Work without the GIL, called from slots of types, where exceptions must not pass.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <new>

#include "cpp/python/bindings.h"
#include "cpp/runtime/error.h"

namespace npusim::python {

// Sets what has just been caught as the pending Python error. Needs the GIL.
inline void set_caught_error() {
  try {
    throw;
  } catch (const Error& error) {
    set_python_error(error);
  } catch (pybind11::error_already_set& error) {  // of Python that was called
    error.restore();
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

// Runs the action without the GIL; what it throws becomes a Python error, and false.
template <typename Action>
bool run_unlocked(const Action& action) {
  PyThreadState* state = PyEval_SaveThread();
  try {
    action();
  } catch (const std::exception&) {
    PyEval_RestoreThread(state);
    set_caught_error();
    return false;
  }
  PyEval_RestoreThread(state);
  return true;
}

}  // namespace npusim::python
