// The dynamic shared memory of a launch, aligned for tiles with 128-byte swizzle.
#pragma once

namespace npusim {

extern __shared__ __align__(1024) unsigned char shared_memory[];

}  // namespace npusim
