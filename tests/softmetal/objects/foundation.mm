// Strings, collections, numbers, data, URLs and errors.
#include "objects/foundation.h"

#include <cstdlib>
#include <cstring>

#include "engine/settings.h"

using softmetal::violation;

namespace softmetal {

NSString* string(const std::string& text) {
  NSString* result = [[NSString alloc] init];
  *result->text_ = text;
  return [result autorelease];
}

std::string text(NSString* string) {
  return string == nil ? "" : *string->text_;
}

NSString* constant_string(const char* text) {
  NSString* result = [[NSString alloc] init];
  *result->text_ = text;
  [result makeImmortal];
  return result;
}

NSError* error(NSString* domain, NSInteger code, const std::string& message) {
  NSDictionary* information = [NSDictionary dictionaryWithObject:string(message)
                                                          forKey:NSLocalizedDescriptionKey];
  return [NSError errorWithDomain:domain code:code userInfo:information];
}

void report(NSError** to, NSString* domain, NSInteger code, const std::string& message) {
  if (to != nullptr) *to = error(domain, code, message);
}

}  // namespace softmetal

// MTLSTR and NS::MakeConstantString of metal-cpp.
SOFTMETAL_EXPORT const void* __CFStringMakeConstantString(const char* text) {
  return softmetal::constant_string(text);
}

namespace {

constexpr NSUInteger kAscii = 1, kUtf8 = 4;

void check_encoding(NSUInteger encoding) {
  if (encoding != kAscii && encoding != kUtf8) violation("strings are ASCII or UTF-8 here");
}

}  // namespace

@implementation NSString
+ (id)string {
  return softmetal::string("");
}
+ (id)stringWithString:(NSString*)other {
  return softmetal::string(softmetal::text(other));
}
+ (id)stringWithCString:(const char*)text encoding:(NSUInteger)encoding {
  check_encoding(encoding);
  return softmetal::string(text);
}
- (id)init {
  text_ = new std::string;
  return self;
}
- (id)initWithString:(NSString*)other {
  text_ = new std::string(softmetal::text(other));
  return self;
}
- (id)initWithCString:(const char*)text encoding:(NSUInteger)encoding {
  check_encoding(encoding);
  text_ = new std::string(text);
  return self;
}
- (id)initWithBytesNoCopy:(void*)bytes
                   length:(NSUInteger)length
                 encoding:(NSUInteger)encoding
             freeWhenDone:(bool)free_when_done {
  check_encoding(encoding);
  text_ = new std::string(static_cast<const char*>(bytes), length);
  if (free_when_done) std::free(bytes);
  return self;
}
- (void)dealloc {
  delete text_;
  [super dealloc];
}
- (id)copy {
  return [self retain];
}
- (const char*)UTF8String {
  return text_->c_str();
}
- (const char*)cStringUsingEncoding:(NSUInteger)encoding {
  check_encoding(encoding);
  return text_->c_str();
}
- (const char*)fileSystemRepresentation {
  return text_->c_str();
}
- (NSUInteger)length {
  // UTF-16 units: a sequence of four bytes takes two.
  NSUInteger units = 0;
  for (const char c : *text_) {
    const auto byte = static_cast<unsigned char>(c);
    units += (byte & 0xC0) != 0x80 ? (byte >= 0xF0 ? 2 : 1) : 0;
  }
  return units;
}
- (NSUInteger)lengthOfBytesUsingEncoding:(NSUInteger)encoding {
  check_encoding(encoding);
  return text_->size();
}
- (NSUInteger)maximumLengthOfBytesUsingEncoding:(NSUInteger)encoding {
  check_encoding(encoding);
  return text_->size() * 3;
}
- (bool)isEqualToString:(NSString*)other {
  return other != nil && *text_ == *other->text_;
}
- (bool)isEqual:(id)other {
  return [other isKindOfClass:[NSString class]] && [self isEqualToString:other];
}
- (NSUInteger)hash {
  return std::hash<std::string>()(*text_);
}
- (id)stringByAppendingString:(NSString*)other {
  return softmetal::string(*text_ + softmetal::text(other));
}
- (id)description {
  return self;
}
@end

@implementation NSArray
+ (id)array {
  return [[[self alloc] init] autorelease];
}
+ (id)arrayWithObject:(id)object {
  return [[[self alloc] initWithObjects:&object count:1] autorelease];
}
+ (id)arrayWithObjects:(const id*)objects count:(NSUInteger)count {
  return [[[self alloc] initWithObjects:objects count:count] autorelease];
}
- (id)init {
  items_ = new std::vector<id>;
  return self;
}
- (id)initWithObjects:(const id*)objects count:(NSUInteger)count {
  items_ = new std::vector<id>(objects, objects + count);
  for (id item : *items_) [item retain];
  return self;
}
- (void)dealloc {
  for (id item : *items_) [item release];
  delete items_;
  [super dealloc];
}
- (id)copy {
  return [self retain];
}
- (id)objectAtIndex:(NSUInteger)index {
  if (index >= items_->size()) violation("objectAtIndex: beyond the end");
  return (*items_)[index];
}
- (NSUInteger)count {
  return items_->size();
}
@end

@interface SoftEnumerator : NSObject {
 @public
  std::vector<id>* left_;
}
@end

@implementation SoftEnumerator
- (id)nextObject {
  if (left_->empty()) return nil;
  id next = left_->back();
  left_->pop_back();
  return next;
}
- (void)dealloc {
  delete left_;
  [super dealloc];
}
@end

@implementation NSDictionary
+ (id)dictionary {
  return [[[self alloc] init] autorelease];
}
+ (id)dictionaryWithObject:(id)object forKey:(id)key {
  return [[[self alloc] initWithObjects:&object forKeys:&key count:1] autorelease];
}
+ (id)dictionaryWithObjects:(const id*)objects forKeys:(const id*)keys count:(NSUInteger)count {
  return [[[self alloc] initWithObjects:objects forKeys:keys count:count] autorelease];
}
- (id)init {
  entries_ = new std::vector<std::pair<id, id>>;
  return self;
}
- (id)initWithObjects:(const id*)objects forKeys:(const id*)keys count:(NSUInteger)count {
  entries_ = new std::vector<std::pair<id, id>>;
  for (NSUInteger i = 0; i < count; ++i) {
    entries_->emplace_back([keys[i] retain], [objects[i] retain]);
  }
  return self;
}
- (void)dealloc {
  for (auto& [key, value] : *entries_) {
    [key release];
    [value release];
  }
  delete entries_;
  [super dealloc];
}
- (id)copy {
  return [self retain];
}
- (id)objectForKey:(id)key {
  for (auto& [known, value] : *entries_) {
    if ([known isEqual:key]) return value;
  }
  return nil;
}
- (NSUInteger)count {
  return entries_->size();
}
- (id)keyEnumerator {
  SoftEnumerator* enumerator = [[SoftEnumerator alloc] init];
  enumerator->left_ = new std::vector<id>;
  for (auto entry = entries_->rbegin(); entry != entries_->rend(); ++entry) {
    enumerator->left_->push_back(entry->first);
  }
  return [enumerator autorelease];
}
@end

@implementation NSNumber
#define SOFTMETAL_NUMBER(maker, initializer, getter, type, real)            \
  +(id)maker : (type)value {                                                \
    return [[[self alloc] initializer:value] autorelease];                  \
  }                                                                         \
  -(id)initializer : (type)value {                                          \
    real_ = static_cast<double>(value);                                     \
    whole_ = static_cast<long>(value);                                      \
    is_real_ = real;                                                        \
    return self;                                                            \
  }                                                                         \
  -(type)getter {                                                           \
    return is_real_ ? static_cast<type>(real_) : static_cast<type>(whole_); \
  }
SOFTMETAL_NUMBER(numberWithBool, initWithBool, boolValue, bool, false)
SOFTMETAL_NUMBER(numberWithChar, initWithChar, charValue, char, false)
SOFTMETAL_NUMBER(numberWithInt, initWithInt, intValue, int, false)
SOFTMETAL_NUMBER(numberWithUnsignedInt, initWithUnsignedInt, unsignedIntValue, unsigned, false)
SOFTMETAL_NUMBER(numberWithLong, initWithLong, longValue, long, false)
SOFTMETAL_NUMBER(numberWithLongLong, initWithLongLong, longLongValue, long long, false)
SOFTMETAL_NUMBER(numberWithUnsignedLong, initWithUnsignedLong, unsignedLongValue, unsigned long,
                 false)
SOFTMETAL_NUMBER(numberWithUnsignedLongLong, initWithUnsignedLongLong, unsignedLongLongValue,
                 unsigned long long, false)
SOFTMETAL_NUMBER(numberWithFloat, initWithFloat, floatValue, float, true)
SOFTMETAL_NUMBER(numberWithDouble, initWithDouble, doubleValue, double, true)
#undef SOFTMETAL_NUMBER
- (id)copy {
  return [self retain];
}
- (bool)isEqual:(id)other {
  return [other isKindOfClass:[NSNumber class]] && ((NSNumber*)other)->real_ == real_;
}
- (id)stringValue {
  return softmetal::string(is_real_ ? std::to_string(real_) : std::to_string(whole_));
}
- (id)description {
  return [self stringValue];
}
@end

@implementation NSData
- (id)initWithBytes:(const void*)bytes length:(NSUInteger)length {
  const auto* first = static_cast<const unsigned char*>(bytes);
  bytes_ = new std::vector<unsigned char>(first, first + length);
  return self;
}
- (void)dealloc {
  delete bytes_;
  [super dealloc];
}
- (const void*)bytes {
  return bytes_->data();
}
- (void*)mutableBytes {
  return bytes_->data();
}
- (NSUInteger)length {
  return bytes_->size();
}
@end

@implementation NSURL
+ (id)fileURLWithPath:(NSString*)path {
  return [[[self alloc] initFileURLWithPath:path] autorelease];
}
- (id)initFileURLWithPath:(NSString*)path {
  path_ = new std::string(softmetal::text(path));
  return self;
}
- (id)initWithString:(NSString*)text {
  const std::string scheme = "file://", given = softmetal::text(text);
  if (given.compare(0, scheme.size(), scheme) != 0) violation("URLs are of files here: " + given);
  path_ = new std::string(given.substr(scheme.size()));
  return self;
}
- (void)dealloc {
  delete path_;
  [super dealloc];
}
- (id)copy {
  return [self retain];
}
- (const char*)fileSystemRepresentation {
  return path_->c_str();
}
- (id)path {
  return softmetal::string(*path_);
}
@end

@implementation NSError
+ (id)errorWithDomain:(NSString*)domain code:(NSInteger)code userInfo:(NSDictionary*)information {
  return [[[self alloc] initWithDomain:domain code:code userInfo:information] autorelease];
}
- (id)initWithDomain:(NSString*)domain code:(NSInteger)code userInfo:(NSDictionary*)information {
  domain_ = [domain retain];
  code_ = code;
  information_ = [information retain];
  return self;
}
- (void)dealloc {
  [domain_ release];
  [information_ release];
  [super dealloc];
}
- (id)copy {
  return [self retain];
}
- (NSInteger)code {
  return code_;
}
- (id)domain {
  return domain_;
}
- (id)userInfo {
  return information_;
}
- (id)localizedDescription {
  return [information_ objectForKey:NSLocalizedDescriptionKey];
}
- (id)description {
  return [self localizedDescription];
}
@end

@interface NSProcessInfo : NSObject
@end

struct SoftVersion {
  NSInteger major, minor, patch;
};

@implementation NSProcessInfo
+ (id)processInfo {
  static NSProcessInfo* one = [] {
    NSProcessInfo* info = [[NSProcessInfo alloc] init];
    [info makeImmortal];
    return info;
  }();
  return one;
}
- (SoftVersion)operatingSystemVersion {
  return {15, 0, 0};
}
- (bool)isOperatingSystemAtLeastVersion:(SoftVersion)version {
  return version.major < 15 || (version.major == 15 && version.minor == 0);
}
- (id)operatingSystemVersionString {
  return softmetal::string(softmetal::settings().os);
}
@end

namespace softmetal {
// For constants.cpp, which knows no Objective-C.
void* constant_text(const char* text) {
  return constant_string(text);
}
}  // namespace softmetal
