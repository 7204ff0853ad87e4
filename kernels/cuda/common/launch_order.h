// The order of launches. Each launch lets the one behind it start while it still runs, and waits
// itself before it touches what others write (programmatic dependent launch).
//
// Code generation calls both functions at the head of every entry: start_successors() but where the
// source calls it later, and await_operands() but where the source names settled_operands, which
// has something to do before the wait. Before it, nothing may be stored and no operand be read but
// those whose bit settled_operands has. No launch may end without having waited: that is what makes
// "the launch before has ended" mean "all launches before have". Blocks with nothing to do may,
// where others of their launch wait.
#pragma once

namespace npusim {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline void start_successors() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
inline void await_operands() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#else
inline void start_successors() {}
inline void await_operands() {}
#endif

}  // namespace npusim
