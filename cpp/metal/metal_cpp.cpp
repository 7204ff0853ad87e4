// The implementation of metal-cpp, in one translation unit as it asks for: selectors and classes.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include "cpp/metal/metal.h"
