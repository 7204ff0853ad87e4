// Windows' own header, without what few programs need and without its macros `min` and `max`.
#pragma once

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
