// What metal-cpp takes of IOSurface: a name.
#pragma once

typedef struct __IOSurface* IOSurfaceRef;
