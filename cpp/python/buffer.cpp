#include "cpp/python/buffer.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>

#include "cpp/python/bindings.h"
#include "cpp/python/dlpack.h"
#include "cpp/runtime/error.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

using Shape = std::vector<int64_t>;

// Format characters of the struct module, by dtype. bfloat16 has none and shows its bits.
const char* buffer_format(DType dtype) {
  // NumPy calls the first of the C types with 64 bits int64: another one prints differently.
  constexpr const char* kInt64 = sizeof(long) == 8 ? "l" : "q";
  constexpr const char* kFormats[] = {"f", "e", "H", "d", kInt64, "i", "h", "b", "B", "?"};
  return kFormats[static_cast<int>(dtype)];
}

DeviceBuffer allocate(std::shared_ptr<Device> device, std::string_view dtype, Shape shape,
                      std::optional<Shape> alloc_shape, bool zero) {
  return allocate_buffer(std::move(device), dtype_from_name(dtype), std::move(shape),
                         std::move(alloc_shape), zero);
}

// Shows a contiguous array whose elements are as wide as those of `dtype`.
DeviceBuffer show(std::shared_ptr<Device> device, std::string_view dtype, Shape shape,
                  const py::array& array, std::optional<bool> copy) {
  const DType type = dtype_from_name(dtype);
  if (!(array.flags() & py::array::c_style)) {
    throw Error(ErrorCode::kInput, "the array is not as dense as its shape and dtype say");
  }
  auto* data = static_cast<std::byte*>(const_cast<void*>(array.data()));
  const std::span<std::byte> bytes(data, static_cast<size_t>(array.nbytes()));
  const bool writable = array.writeable();
  std::shared_ptr<const void> owner = keep_alive(array);
  const py::gil_scoped_release unlocked;
  return buffer_over_host(std::move(device), type, std::move(shape), bytes, writable,
                          std::move(owner), copy);
}

// Of an asynchronous device, the host is shown what has been computed, and from then on runs over
// the buffer are waited for.
py::buffer_info describe(DeviceBuffer& buffer) {
  std::byte* const host = buffer.memory->host();
  if (host == nullptr && (buffer.memory->bytes() > 0 || !buffer.device->host_visible())) {
    throw py::buffer_error("the host cannot read the buffer's memory; use to_numpy()");
  }
  if (!buffer.device->synchronous()) {
    const py::gil_scoped_release unlocked;
    show_to_host(buffer);
  }
  const int64_t width = dtype_size(buffer.dtype);
  Shape strides = row_major(buffer.alloc_shape);
  for (int64_t& stride : strides) stride *= width;
  return {host,
          width,
          buffer_format(buffer.dtype),
          static_cast<py::ssize_t>(buffer.shape.size()),
          {buffer.shape.begin(), buffer.shape.end()},
          {strides.begin(), strides.end()},
          !buffer.writable};
}

// Memory on the device that something else owns.
DeviceBuffer lent(std::shared_ptr<Device> device, std::string_view dtype, Shape shape,
                  uintptr_t address, py::object owner) {
  return buffer_at(std::move(device), dtype_from_name(dtype), std::move(shape), address,
                   keep_alive(std::move(owner)));
}

// The bytes of a contiguous Python object with the buffer protocol, for as long as it lives.
class HostBytes {
 public:
  HostBytes(const py::object& object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw py::error_already_set();
  }
  ~HostBytes() { PyBuffer_Release(&view_); }
  HostBytes(const HostBytes&) = delete;
  HostBytes& operator=(const HostBytes&) = delete;
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<size_t>(view_.len)};
  }

 private:
  Py_buffer view_;
};

}  // namespace

// The bytes of a buffer on their way to the host; the memory is there as long as the object.
class Arrival {
 public:
  explicit Arrival(const DeviceBuffer& buffer)
      : download_(buffer.device->start_download(buffer.memory)) {}

  std::span<std::byte> wait() {
    const py::gil_scoped_release unlocked;
    return download_->wait();
  }

 private:
  std::unique_ptr<Download> download_;
};

namespace {

py::buffer_info bytes_of(Arrival& arrival) {
  const std::span<std::byte> bytes = arrival.wait();
  return {bytes.data(), 1, "B", static_cast<py::ssize_t>(bytes.size())};
}

py::bytes read(const DeviceBuffer& buffer) {
  std::string bytes(static_cast<size_t>(buffer.memory->bytes()), '\0');
  {
    const py::gil_scoped_release unlocked;
    buffer.device->download(std::as_writable_bytes(std::span(bytes)), *buffer.memory, 0);
  }
  return py::bytes(bytes);
}

void read_into(const DeviceBuffer& buffer, const py::object& given) {
  const HostBytes host(given, PyBUF_WRITABLE);
  if (static_cast<int64_t>(host.bytes().size()) != buffer.memory->bytes()) {
    throw Error(ErrorCode::kInput, "the array has not as many bytes as the buffer");
  }
  const py::gil_scoped_release unlocked;
  buffer.device->download(host.bytes(), *buffer.memory, 0);
}

void write(DeviceBuffer& buffer, const py::object& given) {
  const HostBytes host(given, PyBUF_SIMPLE);
  buffer.require_writable(static_cast<int64_t>(host.bytes().size()));
  const py::gil_scoped_release unlocked;
  buffer.device->upload(*buffer.memory, 0, host.bytes());
}

// The protocol of Numba, which CuPy and PyTorch speak as well.
py::dict cuda_array_interface(const DeviceBuffer& buffer) {
  // Kind and width of the dtypes; the protocol has no bfloat16.
  constexpr const char* kTypes[] = {"<f4", "<f2", nullptr, "<f8", "<i8",
                                    "<i4", "<i2", "|i1",   "|u1", "|b1"};
  const char* type = kTypes[static_cast<int>(buffer.dtype)];
  const auto names = buffer.device->foreign_names();
  if (!names || !names->speaks_cuda || type == nullptr) {
    throw py::attribute_error(
        "__cuda_array_interface__: not a CUDA buffer, or of a dtype that the "
        "protocol lacks (DLPack has it)");
  }
  Shape strides = row_major(buffer.alloc_shape);
  for (int64_t& stride : strides) stride *= dtype_size(buffer.dtype);
  const uintptr_t address = buffer.memory->range().offset;
  py::dict description;
  description["shape"] = py::tuple(py::cast(buffer.shape));
  description["typestr"] = type;
  description["data"] = py::make_tuple(address, !buffer.writable);
  description["strides"] = py::tuple(py::cast(strides));
  description["version"] = 3;
  description["stream"] = py::none();  // whatever is here has been computed
  buffer.memory->lend();
  buffer.device->synchronize();
  return description;
}

}  // namespace

std::shared_ptr<const void> keep_alive(py::object object) {
  return {object.release().ptr(), [](const void* held) {
            const py::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(const_cast<void*>(held)));
          }};
}

void bind_buffer(py::module_& module) {
  py::class_<Arrival>(module, "Arrival", py::buffer_protocol(),
                      "Bytes of a buffer on their way to the host, where they can be read and "
                      "written when they have arrived.")
      .def_buffer(&bytes_of)
      .def("wait", [](Arrival& self) { self.wait(); }, "Returns when they have arrived.");
  py::class_<DeviceBuffer, std::shared_ptr<DeviceBuffer>>(
      module, "DeviceBuffer", py::buffer_protocol(),
      "A dense row-major tensor on a device; zero at first.")
      .def(py::init(&allocate), py::arg("device"), py::arg("dtype"), py::arg("shape"),
           py::arg("alloc_shape") = py::none(), py::arg("zero") = true)
      .def(py::init(&show), py::arg("device"), py::arg("dtype"), py::arg("shape"), py::kw_only(),
           py::arg("array"), py::arg("copy") = py::none())
      .def(py::init(&lent), py::arg("device"), py::arg("dtype"), py::arg("shape"), py::kw_only(),
           py::arg("address"), py::arg("owner"))
      .def(py::init([](std::shared_ptr<Device> device, const py::capsule& capsule,
                       std::optional<bool> copy) {
             return from_dlpack(capsule, std::move(device), copy);
           }),
           py::arg("device"), py::arg("capsule"), py::arg("copy") = py::none())
      .def_buffer(&describe)
      .def_readonly("device", &DeviceBuffer::device)
      .def_property_readonly("dtype",
                             [](const DeviceBuffer& self) { return dtype_name(self.dtype); })
      .def_property_readonly(
          "shape", [](const DeviceBuffer& self) { return py::tuple(py::cast(self.shape)); })
      .def_property_readonly(
          "alloc_shape",
          [](const DeviceBuffer& self) { return py::tuple(py::cast(self.alloc_shape)); })
      .def_readonly("writable", &DeviceBuffer::writable)
      .def_property_readonly("nbytes",
                             [](const DeviceBuffer& self) { return self.memory->bytes(); })
      .def_property_readonly("address",
                             [](const DeviceBuffer& self) {
                               require_addresses(*self.device);
                               return self.memory->range().offset;
                             })
      .def_property_readonly("is_aligned",
                             [](const DeviceBuffer& self) {
                               return self.memory->range().offset % self.device->alignment() == 0;
                             })
      .def(
          "fits",
          [](const DeviceBuffer& self, std::string_view dtype, const Shape& shape,
             const Shape& alloc_shape) {
            return dtype_name(self.dtype) == dtype && self.shape == shape &&
                   self.alloc_shape == alloc_shape;
          },
          py::arg("dtype"), py::arg("shape"), py::arg("alloc_shape"),
          "Whether the buffer holds just that.")
      .def("read", &read, "Downloads the bytes of alloc_shape.")
      .def("read_into", &read_into, py::arg("array"),
           "Downloads the bytes of alloc_shape into a contiguous array.")
      .def(
          "start_read", [](const DeviceBuffer& self) { return std::make_unique<Arrival>(self); },
          py::call_guard<py::gil_scoped_release>(),
          "Starts to download the bytes of alloc_shape, behind what has been queued; until they "
          "have arrived, nothing may write to the buffer.")
      .def("write", &write, py::arg("bytes"),
           "Uploads the bytes of alloc_shape, from bytes or a contiguous array.")
      .def("copy_from", &copy_buffer, py::arg("other"), "Copies a buffer of the same device.",
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("__cuda_array_interface__", &cuda_array_interface)
      .def(
          "__dlpack__",
          [](DeviceBuffer& self, const py::object& stream, const py::kwargs&) {
            const auto named = stream.is_none() ? std::optional<int64_t>()
                                                : std::optional(py::cast<int64_t>(stream));
            if (lends_host_memory(*self.device)) {
              const py::gil_scoped_release unlocked;
              show_to_host(self);
            } else {
              hand_over(*self.device, named);
            }
            return to_dlpack(self);
          },
          py::kw_only(), py::arg("stream") = py::none(),
          "Lends the tensor to a DLPack consumer, without a copy: as one of the host where the "
          "host "
          "sees memory that other libraries have no name for. Its stream is made to wait for what "
          "the device still computes.")
      .def("__dlpack_device__", [](const DeviceBuffer& self) {
        const DlDevice device = dl_lent_device(*self.device);
        return py::make_tuple(device.type, device.id);
      });
}

}  // namespace npusim::python
