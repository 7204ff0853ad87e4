// The signature of an entry whose parameters after the pointers are NPUSIM_MAPS tensor maps.
#pragma once
#include "kernels/cuda/common/tma.h"

#define NPUSIM_MAPS_2(X) X(0), X(1)
#define NPUSIM_MAPS_3(X) NPUSIM_MAPS_2(X), X(2)
#define NPUSIM_MAPS_4(X) NPUSIM_MAPS_3(X), X(3)
#define NPUSIM_MAPS_5(X) NPUSIM_MAPS_4(X), X(4)
#define NPUSIM_ALL_MAPS(X) NPUSIM_PASTE(NPUSIM_MAPS_, NPUSIM_MAPS)(X)
#define NPUSIM_MAP_DECLARED(i) const __grid_constant__ npusim::TensorMap map##i
#define NPUSIM_MAP_NAMED(i) &map##i
#ifdef __CUDACC_RTC__
#define NPUSIM_TMA_SIGNATURE NPUSIM_SIGNATURE, NPUSIM_ALL_MAPS(NPUSIM_MAP_DECLARED)
#else
#define NPUSIM_TMA_SIGNATURE NPUSIM_SIGNATURE
#endif
