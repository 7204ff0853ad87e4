#include "cpp/python/exchange.h"

#include <algorithm>
#include <new>

namespace npusim::python {
namespace {

constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kCapsule = "dlpack_exchange_api";
constexpr uint32_t kMajorVersion = 1;
constexpr std::align_val_t kAlignment{64};  // what PyTorch gives its own tensors
constexpr DlDevice kHost{1, 0};

// DLManagedTensorVersioned.
struct ManagedTensor {
  uint32_t major, minor;
  void* manager;
  void (*deleter)(ManagedTensor*);
  uint64_t flags;
  DlTensor tensor;
};

size_t up_to_alignment(size_t bytes) {
  const auto step = static_cast<size_t>(kAlignment);
  return (bytes + step - 1) / step * step;
}

// One allocation: the tensor, its shape, its strides, and from the next boundary on its elements.
ManagedTensor* new_tensor(const ExchangePort& port) {
  const size_t dims = port.shape.size();
  const size_t head = up_to_alignment(sizeof(ManagedTensor) + 2 * dims * sizeof(int64_t));
  const size_t body = up_to_alignment(static_cast<size_t>(port.bytes));
  auto* place = static_cast<std::byte*>(::operator new(head + body, kAlignment));
  auto* shape = reinterpret_cast<int64_t*>(place + sizeof(ManagedTensor));
  int64_t* strides = std::copy(port.shape.begin(), port.shape.end(), shape);
  int64_t step = 1;
  for (size_t i = dims; i-- > 0; step *= std::max<int64_t>(shape[i], 1)) strides[i] = step;
  const auto drop = [](ManagedTensor* tensor) { ::operator delete(tensor, kAlignment); };
  return new (place) ManagedTensor{
      kMajorVersion,
      0,
      nullptr,
      drop,
      0,
      {place + head, kHost, static_cast<int32_t>(dims), port.dtype, shape, strides, 0}};
}

}  // namespace

// DLPackExchangeAPI. The first two entries, of managed tensors, are not needed here.
struct Exchange::Table {
  uint32_t major, minor;
  const Table* previous;
  void (*unused[2])();
  int (*take)(void* managed, void** out);
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

bool Exchange::takes() const {
  return table_->take != nullptr;
}

PyObject* Exchange::make(const ExchangePort& port, Binding& binding) const {
  ManagedTensor* made = new_tensor(port);
  binding = {0, reinterpret_cast<uintptr_t>(made->tensor.data), port.bytes};
  void* tensor = nullptr;
  if (table_->take(made, &tensor) == 0) return static_cast<PyObject*>(tensor);
  return nullptr;  // whether the library freed it is not said: rather lost than freed twice
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
