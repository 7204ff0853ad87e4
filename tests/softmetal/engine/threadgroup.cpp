#include "engine/threadgroup.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <numeric>

namespace softmetal {
namespace {

Threadgroup* running = nullptr;

enum Code { kInternal = 1, kTimeout = 2, kPageFault = 3, kStackOverflow = 12 };

std::string position(const unsigned (&p)[3]) {
  return "(" + std::to_string(p[0]) + "," + std::to_string(p[1]) + "," + std::to_string(p[2]) + ")";
}

bool same(const Site& a, const Site& b) {
  return a.line == b.line && a.column == b.column && std::strcmp(a.operation, b.operation) == 0;
}

}  // namespace

Engine& engine() {
  static Engine* one = new Engine{};
  return *one;
}

Threadgroup::Threadgroup() {
  engine().threadgroup_barrier = &Threadgroup::threadgroup_barrier;
  engine().simdgroup_barrier = &Threadgroup::simdgroup_barrier;
  engine().meet = &Threadgroup::meet;
}

void Threadgroup::set_arguments(void* const* buffers, const std::vector<int>& threadgroup_buffers,
                                std::size_t variables) {
  buffers_ = buffers;
  variables_.assign(variables, nullptr);
  for (std::size_t i = 0; i < variables; ++i) variables_[i] = memory_.address(i);
  threadgroup_buffers_.assign(threadgroup_buffers.size(), nullptr);
  for (std::size_t i = 0; i < threadgroup_buffers.size(); ++i) {
    if (threadgroup_buffers[i] >= 0) {
      threadgroup_buffers_[i] = memory_.address(static_cast<std::size_t>(threadgroup_buffers[i]));
    }
  }
}

void Threadgroup::place_threads(const ThreadgroupShape& shape) {
  count_ = shape.size[0] * shape.size[1] * shape.size[2];
  const unsigned full = shape.full_size[0] * shape.full_size[1] * shape.full_size[2];
  threads_.resize(count_);
  progress_.assign(count_, {State::kReady, {}});
  simdgroups_.resize((count_ + kSimdWidth - 1) / kSimdWidth);
  for (unsigned i = 0; i < count_; ++i) {
    Thread& t = threads_[i];
    const unsigned at[3] = {i % shape.size[0], i / shape.size[0] % shape.size[1],
                            i / (shape.size[0] * shape.size[1])};
    for (int d = 0; d < 3; ++d) {
      t.thread_position_in_threadgroup[d] = at[d];
      t.thread_position_in_grid[d] = shape.position[d] * shape.full_size[d] + at[d];
      t.threadgroup_position_in_grid[d] = shape.position[d];
      t.threads_per_threadgroup[d] = shape.size[d];
      t.dispatch_threads_per_threadgroup[d] = shape.full_size[d];
      t.threadgroups_per_grid[d] = shape.groups[d];
      t.threads_per_grid[d] = shape.grid[d];
    }
    t.thread_index_in_threadgroup = i;
    t.thread_index_in_simdgroup = i % kSimdWidth;
    t.simdgroup_index_in_threadgroup = i / kSimdWidth;
    t.simdgroups_per_threadgroup = static_cast<unsigned>(simdgroups_.size());
    t.dispatch_simdgroups_per_threadgroup = (full + kSimdWidth - 1) / kSimdWidth;
    t.buffers = buffers_;
    t.threadgroup_buffers = threadgroup_buffers_.data();
    t.variables = variables_.data();
  }
  for (std::size_t g = 0; g < simdgroups_.size(); ++g) {
    const auto first = static_cast<unsigned>(g) * kSimdWidth;
    simdgroups_[g].phase = simdgroups_[g].waiting = 0;
    simdgroups_[g].live = std::min(kSimdWidth, count_ - first);
  }
}

Failure Threadgroup::run(const Kernel& kernel, const ThreadgroupShape& shape, Order order,
                         std::mt19937_64& random) {
  kernel_ = &kernel;
  running = this;
  engine().matrix_layout = settings().matrix_layout;
  place_threads(shape);
  memory_.poison();
  busy_.resize(std::max<std::size_t>(busy_.size(), count_));
  order_.resize(count_);
  std::iota(order_.begin(), order_.end(), 0u);
  const bool reverse = order == Order::kReverse || order == Order::kEagerReverse;
  const bool eager = order == Order::kEager || order == Order::kEagerReverse;
  if (reverse) std::reverse(order_.begin(), order_.end());
  done_ = at_barrier_ = 0;
  while (done_ < count_) {
    if (order == Order::kShuffle) std::shuffle(order_.begin(), order_.end(), random);
    bool moved = false;
    Failure failure;
    released_ = false;
    for (std::size_t first = 0, end = 0; first < count_ && !failure; first = end) {
      if (eager && released_) break;  // in the same order behind the barrier
      end = count_;
      if (eager) {
        const unsigned group = order_[first] / kSimdWidth;
        end = first + 1;
        while (end < count_ && order_[end] / kSimdWidth == group) ++end;
      }
      failure = advance(first, end, eager, &moved);
    }
    if (!moved && !failure) failure = stuck();
    if (failure) {
      for (auto& fiber : busy_) {
        if (fiber) idle_.push_back(std::move(fiber));
      }
      return failure;
    }
  }
  if (const int overrun = memory_.damaged(); overrun >= 0) {
    return {kPageFault, "threadgroup memory was written beyond the end, or in front, of variable " +
                            std::to_string(overrun)};
  }
  return {};
}

// Lets those threads of order_[first, end) go on that can: once, or again and again up to a barrier
// of all threads.
Failure Threadgroup::advance(std::size_t first, std::size_t end, bool again, bool* moved) {
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = first; i < end; ++i) {
      if (progress_[order_[i]].state != State::kReady) continue;
      any = *moved = true;
      if (Failure failure = step(order_[i])) return failure;
      if (again && released_) return {};
    }
    if (!again) break;
  }
  return {};
}

void Threadgroup::body(void* self) {
  auto* group = static_cast<Threadgroup*>(self);
  group->kernel_->run(&group->threads_[group->current_]);
}

// Lets one thread run to its next meeting point, or its end.
Failure Threadgroup::step(unsigned thread) {
  current_ = thread;
  engine().current = &threads_[thread];
  if (!busy_[thread]) {
    if (idle_.empty()) idle_.push_back(std::make_unique<Fiber>());
    busy_[thread] = std::move(idle_.back());
    idle_.pop_back();
    busy_[thread]->begin(&Threadgroup::body, this);
  }
  if (busy_[thread]->resume()) {
    const State state = progress_[thread].state;
    if (state == State::kInSimdgroup) release_simdgroup(thread / kSimdWidth);
    if (state == State::kAtBarrier && ++at_barrier_ == count_) release_all();
    return {};
  }
  fault_ = take_fault();
  if (fault_.signal != 0) return stopped();
  idle_.push_back(std::move(busy_[thread]));
  progress_[thread].state = State::kDone;
  ++done_;
  Simdgroup& group = simdgroups_[thread / kSimdWidth];
  --group.live;
  if (group.waiting > 0) release_simdgroup(thread / kSimdWidth);
  return {};
}

void Threadgroup::wait(State state, Site site) {
  progress_[current_] = {state, site};
  if (state == State::kInSimdgroup) ++simdgroups_[current_ / kSimdWidth].waiting;
  Fiber::yield();
}

// When all live lanes of a SIMD group are at the same place, they go on.
void Threadgroup::release_simdgroup(unsigned index) {
  Simdgroup& group = simdgroups_[index];
  if (group.waiting == 0 || group.waiting < group.live) return;
  const unsigned first = index * kSimdWidth, end = std::min(first + kSimdWidth, count_);
  const Site* site = nullptr;
  unsigned lanes = 0;
  for (unsigned i = first; i < end; ++i) {
    if (progress_[i].state != State::kInSimdgroup) continue;
    if (site != nullptr && !same(*site, progress_[i].site)) return;  // stuck() tells
    site = &progress_[i].site;
    lanes |= 1u << (i - first);
  }
  for (unsigned i = first; i < end; ++i) {
    if (progress_[i].state == State::kInSimdgroup) progress_[i].state = State::kReady;
  }
  group.lanes[group.phase] = lanes;
  group.phase ^= 1;
  group.waiting = 0;
}

void Threadgroup::release_all() {
  const Site& site = progress_[0].site;
  for (unsigned i = 1; i < count_; ++i) {
    if (!same(site, progress_[i].site)) return;
  }
  for (Progress& progress : progress_) progress.state = State::kReady;
  at_barrier_ = 0;
  released_ = true;
}

std::string Threadgroup::name(unsigned thread) const {
  return "thread " + position(threads_[thread].thread_position_in_threadgroup) +
         " of threadgroup " + position(threads_[thread].threadgroup_position_in_grid);
}

std::string Threadgroup::doing(unsigned thread) const {
  const Progress& progress = progress_[thread];
  if (progress.state == State::kDone) return "returned";
  return "waits in " + std::string(progress.site.operation) + " of line " +
         std::to_string(progress.site.line);
}

// Nobody can go on: names a thread that waits, and one that does not come.
Failure Threadgroup::stuck() const {
  unsigned waits = 0;
  while (progress_[waits].state == State::kDone) ++waits;
  const bool in_simdgroup = progress_[waits].state == State::kInSimdgroup;
  const unsigned first = in_simdgroup ? waits / kSimdWidth * kSimdWidth : 0;
  const unsigned end = in_simdgroup ? std::min(first + kSimdWidth, count_) : count_;
  for (unsigned other = first; other < end; ++other) {
    const Progress& theirs = progress_[other];
    const bool away =
        theirs.state == State::kDone ? !in_simdgroup : !same(theirs.site, progress_[waits].site);
    if (away) {
      return {kInternal, "threads part at a meeting point: " + name(waits) + " " + doing(waits) +
                             ", but " + name(other) + " " + doing(other)};
    }
  }
  return {kInternal, "threads wait for each other: " + name(waits) + " " + doing(waits)};
}

Failure Threadgroup::stopped() {
  const std::string who = name(current_);
  if (fault_.signal == SIGFPE) return {kInternal, who + " divided an integer by zero"};
  if (fault_.signal == SIGSEGV || fault_.signal == SIGBUS) {
    if (busy_[current_]->overflowed(fault_.address)) {
      return {kStackOverflow, who + " used more than its stack"};
    }
    return {kPageFault, who};
  }
  if (fault_.signal == SIGILL || fault_.signal == SIGTRAP) {
    return {kPageFault,
            who + " used an index outside of an array, or shifted by the width of a type"};
  }
  return {kTimeout, who + " ran longer than " + std::to_string(settings().timeout_s) + " s"};
}

void Threadgroup::threadgroup_barrier(Site site) {
  running->wait(State::kAtBarrier, site);
}

void Threadgroup::simdgroup_barrier(Site site) {
  running->wait(State::kInSimdgroup, site);
}

Meeting Threadgroup::meet(Site site, const void* value, unsigned bytes) {
  Threadgroup& self = *running;
  const unsigned lane = self.current_ % kSimdWidth;
  Simdgroup& group = self.simdgroups_[self.current_ / kSimdWidth];
  const unsigned phase = group.phase;
  std::memcpy(group.slots[phase] + lane * kSlotBytes, value, bytes);
  self.wait(State::kInSimdgroup, site);
  return {group.slots[phase], group.lanes[phase]};
}

}  // namespace softmetal
