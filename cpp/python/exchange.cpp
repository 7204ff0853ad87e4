#include "cpp/python/exchange.h"

#include <algorithm>

namespace npusim::python {
namespace {

constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kCapsule = "dlpack_exchange_api";
constexpr uint32_t kMajorVersion = 1;

}  // namespace

// DLPackExchangeAPI. The first three entries, of managed tensors, are not needed here.
struct Exchange::Table {
  uint32_t major, minor;
  const Table* previous;
  void (*unused[3])();
  int (*read)(void* tensor, DlTensor* out);
  int (*current_queue)(int32_t device_type, int32_t device_id, void** out);
};

std::optional<Exchange> Exchange::of(PyTypeObject* type) {
  if (type->tp_dict == nullptr) return std::nullopt;
  PyObject* capsule = PyDict_GetItemString(type->tp_dict, kAttribute);
  if (capsule == nullptr || !PyCapsule_IsValid(capsule, kCapsule)) return std::nullopt;
  const auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule, kCapsule));
  while (table != nullptr && table->major != kMajorVersion) table = table->previous;
  if (table == nullptr || table->read == nullptr) return std::nullopt;
  return Exchange(table);
}

bool Exchange::bind(PyObject* tensor, const ExchangePort& port, const ExchangePlace& place,
                    Binding& binding) const {
  DlTensor given;
  if (table_->read(tensor, &given) != 0) {
    PyErr_Clear();  // no tensor that DLPack can describe
    return false;
  }
  const bool fits = given.device == place.device && given.dtype == port.dtype &&
                    static_cast<size_t>(given.ndim) == port.shape.size() &&
                    std::equal(port.shape.begin(), port.shape.end(), given.shape) &&
                    is_dense(given);
  if (!fits) return false;
  if (given.data == nullptr && port.bytes != 0) return false;  // it only stands for a tensor
  binding = range_of(given, port.bytes, place.has_addresses);
  return binding.offset % place.alignment == 0;
}

std::optional<std::vector<int64_t>> Exchange::shape(PyObject* tensor, const DlDataType& dtype,
                                                    const DlDevice& device) const {
  DlTensor given;
  if (table_->read(tensor, &given) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  if (!(given.device == device) || !(given.dtype == dtype) || !is_dense(given)) return std::nullopt;
  return std::vector<int64_t>(given.shape, given.shape + given.ndim);
}

std::optional<uintptr_t> Exchange::queue(const DlDevice& device) const {
  void* found = nullptr;
  if (table_->current_queue == nullptr) return std::nullopt;
  if (table_->current_queue(device.type, device.id, &found) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  constexpr uintptr_t kDefault = 1;  // CUDA's handle of the stream that is written 0 elsewhere
  return found == nullptr ? kDefault : reinterpret_cast<uintptr_t>(found);
}

}  // namespace npusim::python
