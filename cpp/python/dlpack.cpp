#include "cpp/python/dlpack.h"

#include <memory>
#include <utility>

#include "cpp/runtime/error.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

constexpr const char* kFresh = "dltensor";
constexpr const char* kUsed = "used_dltensor";

}  // namespace

py::capsule to_dlpack(const DeviceBuffer& buffer) {
  if (!buffer.writable) {
    throw py::buffer_error("the buffer is read only, which DLPack cannot say; copy it first");
  }
  const auto drop = [](PyObject* capsule) {
    // A consumer renames the capsule and takes the tensor over.
    if (PyCapsule_IsValid(capsule, kFresh)) {
      auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule, kFresh));
      managed->deleter(managed);
    }
  };
  return py::capsule(lend_dlpack(buffer), kFresh, drop);
}

DeviceBuffer from_dlpack(const py::capsule& capsule, std::shared_ptr<Device> device,
                         std::optional<bool> copy) {
  if (!PyCapsule_IsValid(capsule.ptr(), kFresh)) {
    throw Error(ErrorCode::kInput, "the DLPack capsule is used up, or of a version newer than 0.x");
  }
  auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kFresh));
  DeviceBuffer buffer = describe_dlpack(managed->tensor, std::move(device));
  std::shared_ptr<const void> owner(managed, [](const DlManagedTensor* taken) {
    if (taken->deleter == nullptr) return;
    const py::gil_scoped_acquire gil;
    taken->deleter(const_cast<DlManagedTensor*>(taken));
  });
  PyCapsule_SetName(capsule.ptr(), kUsed);
  const py::gil_scoped_release unlocked;
  place_dlpack(buffer, managed->tensor, std::move(owner), copy);
  return buffer;
}

}  // namespace npusim::python
