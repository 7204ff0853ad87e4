#include "cpp/cuda/cudnn_descriptor.h"

#include <utility>

namespace npusim::cuda {

CudnnDescriptor::CudnnDescriptor(const CudnnEntries& entries, int kind) : entries_(&entries) {
  if (entries.descriptor_create(kind, &handle_) != 0) handle_ = nullptr;
}

CudnnDescriptor::~CudnnDescriptor() {
  release();
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : entries_(other.entries_), handle_(std::exchange(other.handle_, nullptr)) {}

CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  if (this == &other) return *this;
  release();
  entries_ = other.entries_;
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

void CudnnDescriptor::release() noexcept {
  if (handle_ != nullptr) entries_->descriptor_destroy(handle_);
  handle_ = nullptr;
}

CudnnDescriptor& CudnnDescriptor::set(int attribute, int type, int64_t count, const void* values) {
  if (ok() && entries_->descriptor_set(handle_, attribute, type, count, values) != 0) release();
  return *this;
}

CudnnDescriptor& CudnnDescriptor::set(int attribute, const CudnnDescriptor& other) {
  const CudnnEntries::Descriptor handle = other.get();
  if (handle == nullptr) release();
  return set(attribute, cudnn_abi::kDescriptor, 1, &handle);
}

CudnnDescriptor& CudnnDescriptor::finalize() {
  if (ok() && entries_->descriptor_finalize(handle_) != 0) release();
  return *this;
}

}  // namespace npusim::cuda
