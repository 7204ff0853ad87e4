// scatter by the walk alone.
#include "kernels/gpu/indexing/scatter_walk.h"

NPUSIM_ENTRY {
  NPUSIM_GLOBAL void* const operands[] = {NPUSIM_POINTERS};
  npusim::scatter_walk(NPUSIM_ITEM, operands);
}
