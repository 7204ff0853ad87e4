// What metal-cpp takes of the Objective-C runtime, as GCC's libobjc has it.
#pragma once

typedef const struct objc_selector* SEL;
struct objc_object {
  void* isa;
};

extern "C" {
void* objc_lookUpClass(const char* name);
void* objc_getProtocol(const char* name);
SEL sel_registerName(const char* name);
}
