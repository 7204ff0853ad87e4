// The handler may run on any thread, between any two instructions that read a watched range, so it
// takes no lock and allocates nothing:
//
//  1. Ranges stand in slots of atomics, in blocks that are never freed. A slot's `version` is odd
//     while it changes; the handler reads version, range, version, and believes what did not
//     change. The slot of the range that faults cannot change meanwhile: its owner still reads the
//     memory.
//  2. It calls mmap and sigaction, which are system calls without state of the C library, and puts
//     errno back. From the faulting page on, the rest of the range is replaced by zero pages: one
//     fault a range, not one a page. Threads that fault together do the same twice.
//  3. Only signals of the kernel (si_code > 0) that name an address of a watched range are its own.
#include "cpp/platform/file_faults.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "cpp/platform/forks.h"

namespace npusim::platform {

struct Slot {
  std::atomic<uint32_t> version{0};  // odd: being changed
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<int> protection{0};
  std::atomic<bool> damaged{false};
  bool taken = false;  // guarded by `registry`
};

namespace {

struct Block {
  std::array<Slot, 128> slots;
  std::atomic<Block*> next{nullptr};
};

static_assert(std::atomic<uintptr_t>::is_always_lock_free);
static_assert(std::atomic<pthread_t>::is_always_lock_free);

ForkSafeMutex registry;  // of who changes slots, and of installing
Block first_block;
std::atomic<bool> any_fault{false};
std::atomic<const struct sigaction*> previous{nullptr};
std::atomic<pthread_t> passed_on_by{};
std::atomic<uintptr_t> page_size{4096};

// Whether the address lay in a watched range, which then reads as zeros from its page on.
bool replace_lost(uintptr_t address) {
  for (Block* block = &first_block; block != nullptr; block = block->next.load()) {
    for (Slot& slot : block->slots) {
      const uint32_t version = slot.version.load();
      const uintptr_t begin = slot.begin.load(), end = slot.end.load();
      const int protection = slot.protection.load();
      if (address < begin || address >= end) continue;
      if (version % 2 != 0 || slot.version.load() != version) continue;
      const uintptr_t page = address / page_size.load() * page_size.load();
      void* const start = reinterpret_cast<void*>(page);
      constexpr int kZeros = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
      if (::mmap(start, end - page, protection, kZeros, -1, 0) != start) return false;
      slot.damaged.store(true);
      any_fault.store(true);
      return true;
    }
  }
  return false;
}

void end_process(int signal, const siginfo_t* info) {
  struct sigaction usual{};
  usual.sa_handler = SIG_DFL;
  ::sigaction(signal, &usual, nullptr);
  if (info->si_code <= 0) ::raise(signal);  // else it comes again by itself
}

// A handler that was there before may have passed the signal on by raising it, and have been there
// after this one as well: what comes back from the same thread is not sent in a circle.
void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction* before = previous.load();
  const bool is_kernels = info->si_code > 0;
  const bool came_back = !is_kernels && passed_on_by.load() == pthread_self();
  const bool has_handler =
      before != nullptr && ((before->sa_flags & SA_SIGINFO) != 0 ||
                            (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN));
  if (has_handler && !came_back) {
    if (is_kernels) passed_on_by.store(pthread_self());
    if ((before->sa_flags & SA_SIGINFO) != 0) return before->sa_sigaction(signal, info, context);
    return before->sa_handler(signal);
  }
  const bool ignored = before != nullptr && !has_handler && before->sa_handler == SIG_IGN;
  if (!ignored || is_kernels) end_process(signal, info);
}

void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  if (info->si_code <= 0 || !replace_lost(reinterpret_cast<uintptr_t>(info->si_addr))) {
    pass_on(signal, info, context);
  }
  errno = saved;
}

// Puts the handler before the one that is there. `registry` is held.
void install() {
  struct sigaction now{};
  if (::sigaction(SIGBUS, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_signal) return;
  page_size.store(static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)));
  previous.store(new struct sigaction(now));  // never freed: a handler may be reading the old one
  struct sigaction ours{};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGBUS, &ours, nullptr);
}

Slot* take_slot() {
  for (Block* block = &first_block;; block = block->next.load()) {
    for (Slot& slot : block->slots) {
      if (slot.taken) continue;
      slot.taken = true;
      return &slot;
    }
    if (block->next.load() == nullptr) block->next.store(new Block);
  }
}

void change(Slot& slot, uintptr_t begin, uintptr_t end, int protection) {
  slot.version.fetch_add(1);
  slot.begin.store(begin);
  slot.end.store(end);
  slot.protection.store(protection);
  slot.damaged.store(false);
  slot.version.fetch_add(1);
}

}  // namespace

WatchedRange::WatchedRange(std::span<const std::byte> bytes, bool writable) : slot_(nullptr) {
  if (bytes.empty()) return;
  const std::lock_guard<ForkSafeMutex> locked(registry);
  install();
  slot_ = take_slot();
  const uintptr_t page = page_size.load(), start = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t end = (start + bytes.size() + page - 1) / page * page;
  change(*slot_, start / page * page, end, writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

WatchedRange::~WatchedRange() {
  if (slot_ == nullptr) return;
  const std::lock_guard<ForkSafeMutex> locked(registry);
  change(*slot_, 0, 0, 0);
  slot_->taken = false;
}

bool WatchedRange::is_damaged() const noexcept {
  return slot_ != nullptr && slot_->damaged.load();
}

bool any_file_fault() noexcept {
  return any_fault.load(std::memory_order_relaxed);
}

}  // namespace npusim::platform
