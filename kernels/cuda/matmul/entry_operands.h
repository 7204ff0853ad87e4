// NPUSIM_DECLARE_OPERANDS declares the operands of a product in an entry: those given, unless a
// type (NPUSIM_PRODUCT_OPERANDS) makes them of these.
#pragma once
#ifdef NPUSIM_PRODUCT_OPERANDS
#define NPUSIM_DECLARE_OPERANDS                             \
  void* const given[] = {NPUSIM_POINTERS};                  \
  const npusim::NPUSIM_PRODUCT_OPERANDS operands_of(given); \
  void* const* operands = operands_of.all
#else
#define NPUSIM_DECLARE_OPERANDS void* const operands[] = {NPUSIM_POINTERS}
#endif
