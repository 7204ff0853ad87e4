// Programmatic dependent launch: each launch lets the next one start while it still runs, and waits
// for those before it before it touches memory that they write.
//
// Code generation puts both calls at the head of every entry, with two exceptions. Where the source
// calls launch_dependents() itself, it does so later. Where the source names `unwritten_operands`,
// it calls wait_on_dependencies() itself, having something to do first: before the wait it stores
// nothing, and reads only operands whose bit is set in that mask (bit i: operand i), which no
// command before this one in the method writes; of pools of pages the bit tells that only appends
// of the command's own rows do, and other rows may be read. Memory that is only prefetched may be
// any: what is loaded from L2 later is what was written to it by then.
//
// Every launch has to wait, so that "the launch before has ended" means "all launches before have";
// blocks with nothing to do may end without, as long as others of their launch wait.
#pragma once

namespace npusim {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
inline void wait_on_dependencies() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#else
inline void launch_dependents() {}
inline void wait_on_dependencies() {}
#endif

}  // namespace npusim
