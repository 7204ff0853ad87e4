#include "cpp/python/buffer.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <string>

#include "cpp/python/bindings.h"
#include "cpp/python/dlpack.h"
#include "cpp/runtime/borrowed_memory.h"
#include "cpp/runtime/error.h"

namespace py = pybind11;

namespace npusim::python {
namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t kMostBytes = int64_t{1} << 40;

// Format characters of the struct module, by dtype. bfloat16 has none and shows its bits.
const char* buffer_format(DType dtype) {
  // NumPy calls the first of the C types with 64 bits int64: another one prints differently.
  constexpr const char* kInt64 = sizeof(long) == 8 ? "l" : "q";
  constexpr const char* kFormats[] = {"f", "e", "H", "d", kInt64, "i", "h", "b", "B", "?"};
  return kFormats[static_cast<int>(dtype)];
}

DeviceBuffer allocate(std::shared_ptr<Device> device, std::string_view dtype, Shape shape,
                      std::optional<Shape> alloc_shape, bool zero) {
  DeviceBuffer buffer{
      .device = std::move(device), .memory = nullptr, .dtype = dtype_from_name(dtype)};
  buffer.shape = std::move(shape);
  buffer.alloc_shape = alloc_shape.value_or(buffer.shape);
  if (buffer.alloc_shape.size() != buffer.shape.size()) {
    throw Error(ErrorCode::kInput, "shape and alloc_shape differ in rank");
  }
  for (size_t i = 0; i < buffer.shape.size(); ++i) {
    if (buffer.shape[i] > buffer.alloc_shape[i]) {
      throw Error(ErrorCode::kInput, "alloc_shape is smaller than shape");
    }
  }
  dense_bytes(buffer.shape, buffer.dtype);  // refuses negative extents
  const int64_t bytes = dense_bytes(buffer.alloc_shape, buffer.dtype);
  const bool is_written = !zero && buffer.shape == buffer.alloc_shape;
  buffer.memory =
      is_written ? buffer.device->allocate_unset(bytes) : buffer.device->allocate(bytes);
  return buffer;
}

// Shows a contiguous array whose elements are as wide as those of `dtype`.
DeviceBuffer show(std::shared_ptr<Device> device, std::string_view dtype, Shape shape,
                  const py::array& array, std::optional<bool> copy) {
  DeviceBuffer buffer{
      .device = std::move(device), .memory = nullptr, .dtype = dtype_from_name(dtype)};
  const int64_t bytes = dense_bytes(shape, buffer.dtype);
  if (!(array.flags() & py::array::c_style) || array.nbytes() != bytes) {
    throw Error(ErrorCode::kInput, "the array is not as dense as its shape and dtype say");
  }
  auto* data = static_cast<std::byte*>(const_cast<void*>(array.data()));
  fill_from_host(buffer, {data, static_cast<size_t>(bytes)}, keep_alive(array), copy);
  buffer.shape = buffer.alloc_shape = std::move(shape);
  buffer.writable = !buffer.borrowed || array.writeable();
  return buffer;
}

// Of an asynchronous device, the host is shown what has been computed, and from then on runs over
// the buffer are waited for.
py::buffer_info describe(DeviceBuffer& buffer) {
  std::byte* const host = buffer.memory->host();
  if (host == nullptr && (buffer.memory->bytes() > 0 || !buffer.device->host_visible())) {
    throw py::buffer_error("the host cannot read the buffer's memory; use to_numpy()");
  }
  if (!buffer.device->synchronous()) show_to_host(buffer);
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

void require_addresses(const Device& device) {
  if (device.addressing() != Addressing::kHandles) return;
  throw Error(ErrorCode::kInput,
              "memory of the device " + std::string(device.name()) + " has no addresses");
}

// Memory on the device that something else owns.
DeviceBuffer lent(std::shared_ptr<Device> device, std::string_view dtype, Shape shape,
                  uintptr_t address, py::object owner) {
  DeviceBuffer buffer{
      .device = std::move(device), .memory = nullptr, .dtype = dtype_from_name(dtype)};
  require_addresses(*buffer.device);
  const MemoryRange at{0, address, dense_bytes(shape, buffer.dtype)};
  const bool on_host = buffer.device->addressing() == Addressing::kHost;
  buffer.shape = buffer.alloc_shape = std::move(shape);
  buffer.memory = std::make_shared<BorrowedMemory>(at, on_host ? address_of(at) : nullptr,
                                                   keep_alive(std::move(owner)));
  buffer.borrowed = true;
  return buffer;
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

void require_writable(const DeviceBuffer& buffer, int64_t bytes) {
  if (bytes != buffer.memory->bytes() || !buffer.writable) {
    throw Error(ErrorCode::kInput, "the buffer cannot take these bytes");
  }
}

void write(DeviceBuffer& buffer, const py::object& given) {
  const HostBytes host(given, PyBUF_SIMPLE);
  require_writable(buffer, static_cast<int64_t>(host.bytes().size()));
  const py::gil_scoped_release unlocked;
  buffer.device->upload(*buffer.memory, 0, host.bytes());
}

void copy_from(DeviceBuffer& buffer, const DeviceBuffer& other) {
  require_writable(buffer, other.memory->bytes());
  if (buffer.device != other.device) {
    throw Error(ErrorCode::kInput, "the buffers lie on different devices");
  }
  const py::gil_scoped_release unlocked;
  buffer.device->copy(*buffer.memory, 0, *other.memory, 0, other.memory->bytes());
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

std::optional<DType> find_dtype(std::string_view name) {
  for (int code = 0; code <= static_cast<int>(DType::kBool); ++code) {
    const auto dtype = static_cast<DType>(code);
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

DType dtype_from_name(std::string_view name) {
  if (const std::optional<DType> dtype = find_dtype(name)) return *dtype;
  throw Error(ErrorCode::kInput, "npusim has no dtype " + std::string(name));
}

Shape row_major(std::span<const int64_t> shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

int64_t dense_bytes(std::span<const int64_t> shape, DType dtype) {
  int64_t limit = kMostBytes / dtype_size(dtype), elements = 1;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) throw Error(ErrorCode::kInput, "a shape has a negative extent");
    if (extent > limit) throw Error(ErrorCode::kInput, "a tensor is larger than a terabyte");
    if (extent == 0) {
      empty = true;
      continue;
    }
    limit /= extent;
    elements *= extent;
  }
  return empty ? 0 : elements * dtype_size(dtype);
}

void fill_from_host(DeviceBuffer& buffer, std::span<std::byte> bytes,
                    std::shared_ptr<const void> owner, std::optional<bool> copy) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (!copy.value_or(false)) buffer.memory = buffer.device->import_host(bytes, std::move(owner));
  buffer.borrowed = buffer.memory != nullptr;
  if (buffer.borrowed) return;
  if (copy == false && size > 0) {
    throw Error(ErrorCode::kInput, "the device " + std::string(buffer.device->name()) +
                                       " cannot use these " + std::to_string(size) +
                                       " bytes where they lie; leave copy out, or say copy=True");
  }
  buffer.memory = buffer.device->allocate_unset(size);
  const py::gil_scoped_release unlocked;
  buffer.device->upload(*buffer.memory, 0, bytes);
}

void show_to_host(DeviceBuffer& buffer) {
  buffer.borrowed = true;
  const py::gil_scoped_release unlocked;
  buffer.device->synchronize();
  buffer.memory->check();
}

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
      .def("copy_from", &copy_from, py::arg("other"), "Copies a buffer of the same device.")
      .def_property_readonly("__cuda_array_interface__", &cuda_array_interface)
      .def(
          "__dlpack__",
          [](DeviceBuffer& self, const py::object& stream, const py::kwargs&) {
            if (lends_host_memory(*self.device)) {
              show_to_host(self);
            } else {
              hand_over(*self.device, stream);
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
