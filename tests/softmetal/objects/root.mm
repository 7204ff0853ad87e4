// NSObject, autorelease pools, and the count of what is alive.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "engine/counts.h"
#include "engine/settings.h"
#include "objects/foundation.h"

extern "C" id (*__objc_msg_forward2)(id, SEL);

namespace {

constexpr int kImmortal = 1 << 30;

struct Alive {
  std::mutex mutex;
  std::map<std::string, long> classes;
};

Alive& alive() {
  static auto* one = new Alive;
  return *one;
}

void count(Class kind, long by) {
  const std::lock_guard lock(alive().mutex);
  alive().classes[class_getName(kind)] += by;
}

using Pools = std::vector<std::vector<id>>;

Pools& pools() {
  static thread_local Pools one;
  return one;
}

[[noreturn]] id unknown(id receiver, SEL selector, ...) {
  if (std::string(object_getClassName(receiver)) == "SoftGone") [receiver retain];
  softmetal::violation(std::string(object_getClassName(receiver)) + " does not know the message '" +
                       sel_getName(selector) + "': the software device lacks it");
}

IMP forward(id, SEL) {
  return reinterpret_cast<IMP>(&unknown);
}

void report_leaks() {
  const std::lock_guard lock(alive().mutex);
  long total = 0;
  std::string names;
  for (const auto& [name, number] : alive().classes) {
    if (number == 0) continue;
    total += number;
    names += (names.empty() ? "" : ", ") + name + " " + std::to_string(number);
  }
  if (total == 0) return;
  std::fprintf(stderr, "SoftMetal: %ld objects alive at exit: %s\n", total, names.c_str());
  if (softmetal::settings().fatal_leaks) {
    std::fflush(nullptr);
    std::_Exit(87);
  }
}

__attribute__((constructor)) void begin() {
  __objc_msg_forward2 = reinterpret_cast<id (*)(id, SEL)>(reinterpret_cast<void*>(&forward));
  std::atexit(&report_leaks);
}

}  // namespace

SOFTMETAL_EXPORT long softmetal_alive(void) {
  const std::lock_guard lock(alive().mutex);
  long total = 0;
  for (const auto& [name, number] : alive().classes) total += number;
  return total;
}

SOFTMETAL_EXPORT long softmetal_counted(const char* name) {
  return softmetal::counted(name);
}
SOFTMETAL_EXPORT int softmetal_set(const char* name, const char* value) {
  return softmetal::set(name, value) ? 0 : -1;
}

SOFTMETAL_EXPORT void* objc_autoreleasePoolPush(void) {
  pools().emplace_back();
  return reinterpret_cast<void*>(pools().size());
}

SOFTMETAL_EXPORT void objc_autoreleasePoolPop(void* depth) {
  while (pools().size() >= reinterpret_cast<std::size_t>(depth)) {
    // What is released may autorelease in turn: into this pool, so by place.
    for (std::size_t i = 0; i < pools().back().size(); ++i) [pools().back()[i] release];
    pools().pop_back();
  }
}

@implementation NSObject
// The runtime calls this on every class before its first message.
+ (void)initialize {
}
+ (id)alloc {
  NSObject* object = class_createInstance(self, 0);
  object->owners_ = 1;
  count(self, 1);
  return object;
}
+ (id)new {
  return [[self alloc] init];
}
+ (Class)class {
  return self;
}
- (id)init {
  return self;
}
- (id)retain {
  if (owners_ < kImmortal) __atomic_add_fetch(&owners_, 1, __ATOMIC_RELAXED);
  return self;
}
- (void)release {
  if (owners_ >= kImmortal) return;
  const int left = __atomic_sub_fetch(&owners_, 1, __ATOMIC_ACQ_REL);
  if (left == 0) [self dealloc];
}
- (id)autorelease {
  if (owners_ >= kImmortal) return self;
  if (pools().empty()) {
    std::fprintf(stderr, "SoftMetal: %s autoreleased with no pool in place: it leaks\n",
                 object_getClassName(self));
  } else {
    pools().back().push_back(self);
  }
  return self;
}
- (NSUInteger)retainCount {
  return static_cast<NSUInteger>(owners_);
}
- (void)dealloc {
  count(object_getClass(self), -1);
  was_ = object_getClass(self);
  object_setClass(self, objc_lookUpClass("SoftGone"));
}
- (bool)isEqual:(id)other {
  return self == other;
}
- (NSUInteger)hash {
  return reinterpret_cast<NSUInteger>(self);
}
- (bool)respondsToSelector:(SEL)selector {
  return class_respondsToSelector(object_getClass(self), selector);
}
- (id)methodSignatureForSelector:(SEL)selector {
  (void)selector;
  return nil;
}
- (bool)isKindOfClass:(Class)kind {
  for (Class at = object_getClass(self); at != Nil; at = class_getSuperclass(at)) {
    if (at == kind) return true;
  }
  return false;
}
- (id)description {
  return softmetal::string(std::string("<") + object_getClassName(self) + ">");
}
- (id)debugDescription {
  return [self description];
}
- (void)makeImmortal {
  owners_ = kImmortal;
  count(object_getClass(self), -1);
}
@end

// What an object becomes instead of free memory, so that using it is told.
@interface SoftGone : NSObject
@end
@implementation SoftGone
- (id)retain {
  softmetal::violation(std::string(class_getName(was_)) + " is used after its last release");
}
- (void)release {
  [self retain];
}
- (id)autorelease {
  return [self retain];
}
@end

@implementation NSAutoreleasePool
- (id)init {
  depth_ = reinterpret_cast<std::size_t>(objc_autoreleasePoolPush());
  return self;
}
- (id)autorelease {
  softmetal::violation("an autorelease pool cannot be autoreleased");
}
- (void)drain {
  [self release];
}
- (void)addObject:(id)object {
  if (depth_ == pools().size()) {
    pools().back().push_back(object);
  } else {
    softmetal::violation("addObject: on a pool that is not the innermost");
  }
}
- (void)dealloc {
  objc_autoreleasePoolPop(reinterpret_cast<void*>(depth_));
  [super dealloc];
}
@end
