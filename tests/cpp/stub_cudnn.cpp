// cuDNN without a GPU, for tests: descriptors are kept as they are described, and a plan runs the
// convolution and what follows it in float32, over the stub driver. The heuristics give three
// configurations: one that is compiled first, one that rounds its inputs, and one like any.
// STUB_CUDNN_VERSION and STUB_CUDNN_CUDA are its version and the CUDA it was made for.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/cpp/stub_library.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using npusim::tests::host_floats;

constexpr int kInvalid = 2000;

struct Descriptor {
  int kind = 0;
  bool final = false;
  std::map<int, std::vector<std::byte>> values;
  int index = 0;                              // of a configuration, and of its engine
  std::vector<const Descriptor*> operations;  // that a configuration is for

  template <typename T>
  std::vector<T> all(int attribute) const {
    const auto& bytes = values.at(attribute);
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  template <typename T>
  T one(int attribute) const {
    return all<T>(attribute).at(0);
  }
  const Descriptor& part(int attribute) const { return *one<const Descriptor*>(attribute); }
};

size_t size_of_type(int type) {
  const bool small =
      type == 1 || type == 4 || type == 7 || type == 8 || type == 11 || type == 14 || type == 19;
  return type == 2 ? 1 : small ? 4 : 8;
}

struct Tensor {
  int64_t name;
  std::vector<int64_t> dims, strides;
  explicit Tensor(const Descriptor& d)
      : name(d.one<int64_t>(906)), dims(d.all<int64_t>(902)), strides(d.all<int64_t>(903)) {}
  int64_t at(int64_t n, int64_t c, int64_t h, int64_t w) const {
    const std::array<int64_t, 4> place = {n, c, h, w};
    int64_t offset = 0;
    for (size_t i = 0; i < 4; ++i) offset += (dims[i] == 1 ? 0 : place[i]) * strides[i];
    return offset;
  }
};

using Addresses = std::map<int64_t, const void*>;

float convolved(const Descriptor& op, const Addresses& addresses, int64_t n, int64_t c, int64_t h,
                int64_t w) {
  const Tensor x(op.part(704)), weights(op.part(703)), y(op.part(705));
  const Descriptor& how = op.part(702);
  const auto pad = how.all<int64_t>(105), stride = how.all<int64_t>(103),
             dilation = how.all<int64_t>(102);
  const int64_t channels = weights.dims[1], group = c / (y.dims[1] / (x.dims[1] / channels));
  float sum = 0;
  for (int64_t i = 0; i < channels * weights.dims[2] * weights.dims[3]; ++i) {
    const int64_t in = i % channels, kw = i / channels % weights.dims[3],
                  kh = i / channels / weights.dims[3];
    const int64_t ih = h * stride[0] - pad[0] + kh * dilation[0];
    const int64_t iw = w * stride[1] - pad[1] + kw * dilation[1];
    if (ih < 0 || iw < 0 || ih >= x.dims[2] || iw >= x.dims[3]) continue;
    sum += host_floats(addresses.at(x.name))[x.at(n, group * channels + in, ih, iw)] *
           host_floats(addresses.at(weights.name))[weights.at(c, in, kh, kw)];
  }
  return sum;
}

// The operations in order, for every element of what the last one writes.
void compute(const std::vector<const Descriptor*>& operations, const Addresses& addresses) {
  const Descriptor& last = *operations.back();
  const Tensor y(last.part(last.kind == 10 ? 705 : 753));
  for (int64_t i = 0; i < y.dims[0] * y.dims[1] * y.dims[2] * y.dims[3]; ++i) {
    const int64_t w = i % y.dims[3], h = i / y.dims[3] % y.dims[2];
    const int64_t c = i / y.dims[3] / y.dims[2] % y.dims[1];
    const int64_t n = i / y.dims[3] / y.dims[2] / y.dims[1];
    float value = convolved(*operations[0], addresses, n, c, h, w);
    for (size_t o = 1; o < operations.size(); ++o) {
      if (operations[o]->part(750).one<int>(0) == 100) {
        value = std::max(value, 0.0F);
        continue;
      }
      const Tensor b(operations[o]->part(752));
      value += host_floats(addresses.at(b.name))[b.at(n, c, h, w)];
    }
    host_floats(addresses.at(y.name))[y.at(n, c, h, w)] = value;
  }
}

}  // namespace

EXPORT int cudnnCreate(void** handle) {
  *handle = new int(0);
  return 0;
}
EXPORT int cudnnDestroy(void* handle) {
  delete static_cast<int*>(handle);
  return 0;
}
EXPORT int cudnnSetStream(void*, void*) {
  return 0;
}
EXPORT size_t cudnnGetVersion() {
  return static_cast<size_t>(npusim::tests::environment_number("STUB_CUDNN_VERSION", 91900));
}
EXPORT size_t cudnnGetCudartVersion() {
  return static_cast<size_t>(npusim::tests::environment_number("STUB_CUDNN_CUDA", 13000));
}
EXPORT int cudnnBackendCreateDescriptor(int kind, Descriptor** descriptor) {
  // Kept, since others refer to it.
  static std::vector<std::unique_ptr<Descriptor>> all;
  all.push_back(std::make_unique<Descriptor>(Descriptor{kind, false, {}, 0, {}}));
  *descriptor = all.back().get();
  return 0;
}
EXPORT int cudnnBackendDestroyDescriptor(Descriptor*) {
  return 0;
}
EXPORT int cudnnBackendSetAttribute(Descriptor* descriptor, int attribute, int type, int64_t count,
                                    const void* values) {
  if (descriptor->final || count < 0) return kInvalid;
  const auto* bytes = static_cast<const std::byte*>(values);
  descriptor->values[attribute].assign(bytes,
                                       bytes + static_cast<size_t>(count) * size_of_type(type));
  return 0;
}
EXPORT int cudnnBackendFinalize(Descriptor* descriptor) {
  descriptor->final = true;
  return 0;
}
EXPORT int cudnnBackendGetAttribute(const Descriptor* descriptor, int attribute, int,
                                    int64_t wanted, int64_t* count, void* values) {
  *count = 0;
  if (attribute == 202) {  // configurations of the heuristics
    *count = std::min<int64_t>(wanted, 3);
    for (int64_t i = 0; i < *count; ++i) {
      Descriptor& configuration = *static_cast<Descriptor**>(values)[i];
      configuration.index = static_cast<int>(i);
      configuration.operations = descriptor->part(201).all<const Descriptor*>(801);
    }
  } else if (attribute == 300) {  // the engine of a configuration
    *count = 1;
    static_cast<Descriptor**>(values)[0]->index = descriptor->index;
  } else if (attribute == 402) {  // workspace of a plan
    *count = 1;
    *static_cast<int64_t*>(values) = 96;
  } else if ((attribute == 1305 && descriptor->index == 0) ||
             (attribute == 1303 && descriptor->index == 1)) {
    *count = 1;
    *static_cast<int*>(values) = attribute == 1305 ? 0 : 1;
  }
  return 0;
}
EXPORT int cudnnBackendExecute(void*, const Descriptor* plan, const Descriptor* pack) {
  constexpr int kLikeAny = 2;
  const auto names = pack->all<int64_t>(1000);
  const auto pointers = pack->all<const void*>(1001);
  const Descriptor* configuration = plan->one<const Descriptor*>(401);
  if (configuration->index != kLikeAny || pack->one<void*>(1003) == nullptr) return kInvalid;
  Addresses addresses;
  for (size_t i = 0; i < names.size(); ++i) addresses[names[i]] = pointers[i];
  npusim::tests::enqueue(
      [operations = configuration->operations, addresses] { compute(operations, addresses); });
  return 0;
}
