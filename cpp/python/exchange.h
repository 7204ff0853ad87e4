// DLPack's C exchange interface (DLPack 1.3): tensors of another library read, and its current
// queue asked for, by plain calls through a table that the library hangs on its tensor type; and
// tensors of the host made for it.
#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "cpp/runtime/dlpack.h"
#include "cpp/runtime/executor.h"

namespace npusim::python {

// A tensor as a caller has to bring it: dense, row-major, on one device.
struct ExchangePort {
  DlDataType dtype;
  std::vector<int64_t> shape;
  int64_t bytes;
};

// Where tensors lie that can be used there.
struct ExchangePlace {
  DlDevice device = {};  // of no type: nowhere
  bool has_addresses = true;
  size_t alignment = 1;  // of their beginning
};

class Exchange {
 public:
  // Of a type that has the table itself: what inherits it may be no plain tensor. Nothing where it
  // has none, or one of another major version.
  static std::optional<Exchange> of(PyTypeObject* type);

  // Whether the tensor, of that very type, lies where it has to, as the port says; says where.
  // Never leaves a Python error set.
  bool bind(PyObject* tensor, const ExchangePort& port, const ExchangePlace& place,
            Binding& binding) const;

  // The shape of a tensor of that very type, dense and of this dtype on the device; nothing for
  // another one.
  std::optional<std::vector<int64_t>> shape(PyObject* tensor, const DlDataType& dtype,
                                            const DlDevice& device) const;

  // Whether the library takes tensors from others.
  bool takes() const;

  // A new uninitialised tensor of the library's in the host's memory, and where it lies. The memory
  // is freed when the library gives it back. Null with a Python error set. Only where it takes any.
  PyObject* make(const ExchangePort& port, Binding& binding) const;

  // The queue that the library's work on the device goes to now; nothing where it does not tell.
  std::optional<uintptr_t> queue(const DlDevice& device) const;

 private:
  struct Table;
  explicit Exchange(const Table* table) : table_(table) {}
  const Table* table_;  // lives as long as the library
};

}  // namespace npusim::python
