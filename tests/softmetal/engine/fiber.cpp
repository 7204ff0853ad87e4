#include "engine/fiber.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

extern "C" void softmetal_switch(void** save, void* load);
extern "C" void softmetal_fiber_start();

namespace softmetal {
namespace {
constexpr std::size_t kGuardBytes = 64 * 1024;
thread_local Fiber* running_fiber = nullptr;
}  // namespace

Fiber::Fiber() {
  void* mapping = mmap(nullptr, kGuardBytes + kStackBytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = static_cast<unsigned char*>(mapping);
  if (mprotect(mapping_ + kGuardBytes, kStackBytes, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapping_, kGuardBytes + kStackBytes);
    throw std::bad_alloc();
  }
}

Fiber::~Fiber() {
  munmap(mapping_, kGuardBytes + kStackBytes);
}

void Fiber::begin(void (*body)(void*), void* argument) {
  body_ = body;
  argument_ = argument;
  ended_ = false;
  auto* top = reinterpret_cast<void**>(mapping_ + kGuardBytes + kStackBytes);
#if defined(__x86_64__)
  // What softmetal_switch pops: r15 r14 r13 r12 rbx rbp, then the address it returns to.
  top -= 2;
  *--top = reinterpret_cast<void*>(&softmetal_fiber_start);
  top -= 6;
  std::memset(top, 0, 6 * sizeof(void*));
  top[3] = reinterpret_cast<void*>(&Fiber::enter);
#else
  top -= 20;
  std::memset(top, 0, 20 * sizeof(void*));
  top[0] = reinterpret_cast<void*>(&Fiber::enter);
  top[11] = reinterpret_cast<void*>(&softmetal_fiber_start);
#endif
  stack_pointer_ = top;
}

bool Fiber::resume() {
  running_fiber = this;
  softmetal_switch(&scheduler_, stack_pointer_);
  running_fiber = nullptr;
  return !ended_;
}

void Fiber::enter() {
  Fiber* self = running_fiber;
  self->body_(self->argument_);
  self->ended_ = true;
  softmetal_switch(&self->stack_pointer_, self->scheduler_);
}

void Fiber::yield() {
  Fiber* self = running_fiber;
  softmetal_switch(&self->stack_pointer_, self->scheduler_);
}

void Fiber::abandon() {
  Fiber* self = running_fiber;
  self->ended_ = true;
  void* forgotten = nullptr;
  softmetal_switch(&forgotten, self->scheduler_);
  std::abort();
}

Fiber* Fiber::running() {
  return running_fiber;
}

bool Fiber::overflowed(std::uintptr_t address) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping_);
  return address >= begin && address < begin + kGuardBytes;
}

}  // namespace softmetal
