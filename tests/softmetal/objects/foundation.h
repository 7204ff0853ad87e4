// Foundation, as far as a Metal host program meets it, for GCC's Objective-C runtime. Objects are
// counted: what is alive at the end of the process is named there.
#pragma once

#include <Block.h>
#include <objc/objc.h>
#include <objc/runtime.h>

#include <string>
#include <utility>
#include <vector>

typedef unsigned long NSUInteger;
typedef long NSInteger;
struct NSRange {
  NSUInteger location, length;
};

#define SOFTMETAL_EXPORT extern "C" __attribute__((visibility("default")))

__attribute__((objc_root_class))
@interface NSObject {
  Class isa;
  int owners_;
  Class was_;  // of what is gone
}
+ (id)alloc;
+ (id)new;
+ (Class)class;
- (id)init;
- (id)retain;
- (void)release;
- (id)autorelease;
- (NSUInteger)retainCount;
- (void)dealloc;
- (bool)isEqual:(id)other;
- (NSUInteger)hash;
- (bool)respondsToSelector:(SEL)selector;
- (bool)isKindOfClass:(Class)kind;
- (id)description;
- (void)makeImmortal;  // constants are not counted
@end

@interface NSAutoreleasePool : NSObject {
  std::size_t depth_;
}
- (void)drain;
- (void)addObject:(id)object;
@end

@interface NSString : NSObject {
 @public
  std::string* text_;
}
+ (id)string;
+ (id)stringWithString:(NSString*)other;
+ (id)stringWithCString:(const char*)text encoding:(NSUInteger)encoding;
- (id)initWithString:(NSString*)other;
- (id)initWithCString:(const char*)text encoding:(NSUInteger)encoding;
- (id)initWithBytesNoCopy:(void*)bytes
                   length:(NSUInteger)length
                 encoding:(NSUInteger)encoding
             freeWhenDone:(bool)free_when_done;
- (const char*)UTF8String;
- (NSUInteger)length;
- (bool)isEqualToString:(NSString*)other;
@end

@interface NSArray : NSObject {
 @public
  std::vector<id>* items_;
}
+ (id)array;
+ (id)arrayWithObject:(id)object;
+ (id)arrayWithObjects:(const id*)objects count:(NSUInteger)count;
- (id)initWithObjects:(const id*)objects count:(NSUInteger)count;
- (id)objectAtIndex:(NSUInteger)index;
- (NSUInteger)count;
@end

@interface NSDictionary : NSObject {
 @public
  std::vector<std::pair<id, id>>* entries_;  // key, value
}
+ (id)dictionary;
+ (id)dictionaryWithObject:(id)object forKey:(id)key;
+ (id)dictionaryWithObjects:(const id*)objects forKeys:(const id*)keys count:(NSUInteger)count;
- (id)initWithObjects:(const id*)objects forKeys:(const id*)keys count:(NSUInteger)count;
- (id)objectForKey:(id)key;
- (NSUInteger)count;
- (id)keyEnumerator;
@end

@interface NSNumber : NSObject {
 @public
  double real_;
  long whole_;
  bool is_real_;
}
- (id)stringValue;
@end

@interface NSData : NSObject {
  std::vector<unsigned char>* bytes_;
}
- (id)initWithBytes:(const void*)bytes length:(NSUInteger)length;
- (const void*)bytes;
- (void*)mutableBytes;
- (NSUInteger)length;
@end

@interface NSURL : NSObject {
 @public
  std::string* path_;
}
+ (id)fileURLWithPath:(NSString*)path;
- (id)initFileURLWithPath:(NSString*)path;
- (id)initWithString:(NSString*)text;
- (const char*)fileSystemRepresentation;
- (id)path;
@end

@interface NSError : NSObject {
  NSString* domain_;
  NSInteger code_;
  NSDictionary* information_;
}
+ (id)errorWithDomain:(NSString*)domain code:(NSInteger)code userInfo:(NSDictionary*)information;
- (id)initWithDomain:(NSString*)domain code:(NSInteger)code userInfo:(NSDictionary*)information;
- (id)localizedDescription;
@end

extern "C" NSString* const NSLocalizedDescriptionKey;

namespace softmetal {

// Autoreleased.
NSString* string(const std::string& text);
std::string text(NSString* string);  // empty for nil
NSError* error(NSString* domain, NSInteger code, const std::string& message);
// Sets *to, where the caller wants to know.
void report(NSError** to, NSString* domain, NSInteger code, const std::string& message);
// A string of the process's whole life.
NSString* constant_string(const char* text);

// Retains the new, releases the old.
template <typename T>
void assign(T** to, T* value) {
  [value retain];
  [*to release];
  *to = value;
}

}  // namespace softmetal
