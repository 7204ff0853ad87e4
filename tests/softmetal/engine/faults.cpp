#include "engine/faults.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <ctime>
#include <mutex>

#include "engine/fiber.h"

namespace softmetal {
namespace {

constexpr std::size_t kLandingBytes = 16 * 1024;
constexpr std::array<int, 5> kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};

struct ThreadState {
  Fault fault;
  unsigned char* stacks = nullptr;  // the handler's, and the one a stopped fiber leaves from
  timer_t timer = nullptr;
  bool has_timer = false;
};
thread_local ThreadState state;
struct sigaction earlier[64];

int time_signal() {
  return SIGRTMIN + 5;
}

[[noreturn]] void land() {
  Fiber::abandon();
}

// Lets the fiber go on in land(), on a stack of its own: its own may be full.
void redirect(void* context) {
  auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
  const auto top = reinterpret_cast<std::uintptr_t>(state.stacks + 2 * kLandingBytes) - 64;
#if defined(__x86_64__)
  machine->gregs[REG_RIP] = static_cast<greg_t>(reinterpret_cast<std::uintptr_t>(&land));
  machine->gregs[REG_RSP] = static_cast<greg_t>(top - 8);
#else
  machine->pc = reinterpret_cast<std::uintptr_t>(&land);
  machine->sp = top;
#endif
}

void handle(int signal, siginfo_t* info, void* context) {
  if (Fiber::running() != nullptr && state.stacks != nullptr) {
    state.fault = {signal, reinterpret_cast<std::uintptr_t>(info->si_addr)};
    redirect(context);
    return;
  }
  if (signal == time_signal()) return;  // between two fibers: it comes again
  const struct sigaction& before = earlier[signal];
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);  // the instruction runs again and ends the process
  }
}

void install(int signal) {
  struct sigaction action = {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, &earlier[signal]);
}

void arm(double seconds) {
  itimerspec when = {};
  when.it_value.tv_sec = static_cast<time_t>(seconds);
  when.it_value.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  // Again and again, as one may come while the engine itself runs.
  when.it_interval.tv_nsec = seconds > 0 ? 10'000'000 : 0;
  timer_settime(state.timer, 0, &when, nullptr);
}

}  // namespace

void watch_faults() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const int signal : kSignals) install(signal);
    install(time_signal());
  });
  if (state.stacks != nullptr) return;
  void* mapping =
      mmap(nullptr, 2 * kLandingBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return;
  state.stacks = static_cast<unsigned char*>(mapping);
  stack_t stack = {};
  stack.ss_sp = state.stacks;
  stack.ss_size = kLandingBytes;
  sigaltstack(&stack, nullptr);
}

Fault take_fault() {
  const Fault fault = state.fault;
  state.fault = {};
  return fault;
}

TimeLimit::TimeLimit(double seconds) {
  if (!state.has_timer) {
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = time_signal();
    event._sigev_un._tid = static_cast<int>(syscall(SYS_gettid));
    state.has_timer = timer_create(CLOCK_MONOTONIC, &event, &state.timer) == 0;
  }
  if (state.has_timer) arm(seconds);
}

TimeLimit::~TimeLimit() {
  if (state.has_timer) arm(0);
}

}  // namespace softmetal
