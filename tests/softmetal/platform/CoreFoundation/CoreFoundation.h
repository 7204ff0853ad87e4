// What metal-cpp takes of CoreFoundation. Constant strings are made by libsoftmetal.
#pragma once

typedef double CFTimeInterval;
typedef const struct __CFString* CFStringRef;

extern "C" CFStringRef __CFStringMakeConstantString(const char* text);
