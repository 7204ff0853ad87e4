// What metal-cpp takes of CoreFoundation, which includes math.h. Constant strings are
// libsoftmetal's.
#pragma once

#include <math.h>

typedef double CFTimeInterval;
typedef const struct __CFString* CFStringRef;

extern "C" CFStringRef __CFStringMakeConstantString(const char* text);
