// Work without the GIL, called from slots of types, where exceptions must not pass.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "cpp/python/bindings.h"
#include "cpp/runtime/error.h"

namespace npusim::python {

// Runs the action without the GIL; what it throws becomes a Python error, and false.
template <typename Action>
bool run_unlocked(const Action& action) {
  PyThreadState* state = PyEval_SaveThread();
  try {
    action();
  } catch (const Error& error) {
    PyEval_RestoreThread(state);
    set_python_error(error);
    return false;
  } catch (pybind11::error_already_set& error) {  // of Python that the action called
    PyEval_RestoreThread(state);
    error.restore();
    return false;
  } catch (const std::exception& error) {
    PyEval_RestoreThread(state);
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return false;
  }
  PyEval_RestoreThread(state);
  return true;
}

}  // namespace npusim::python
