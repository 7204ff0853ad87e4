// The strings that hosts know by name. Linked last: the classes have to be there when it begins.
namespace softmetal {
void* constant_text(const char* text);
}

#define SOFTMETAL_STRING(name)                                        \
  extern "C" __attribute__((visibility("default"))) void* const name; \
  void* const name = softmetal::constant_text(#name);

SOFTMETAL_STRING(NSLocalizedDescriptionKey)
SOFTMETAL_STRING(NSCocoaErrorDomain)
SOFTMETAL_STRING(NSPOSIXErrorDomain)
SOFTMETAL_STRING(NSUnderlyingErrorKey)
SOFTMETAL_STRING(NSLocalizedFailureReasonErrorKey)
SOFTMETAL_STRING(MTLLibraryErrorDomain)
SOFTMETAL_STRING(MTLCommandBufferErrorDomain)
SOFTMETAL_STRING(MTLBinaryArchiveDomain)
SOFTMETAL_STRING(MTLCounterErrorDomain)
SOFTMETAL_STRING(MTLCommonCounterTimestamp)
SOFTMETAL_STRING(MTLCommonCounterSetTimestamp)
