// Libraries from source, functions with their constants, compile options.
#include <cstring>

#include "engine/settings.h"
#include "objects/metal.h"

using softmetal::violation;

#define SOFTMETAL_PROPERTY(type, getter, setter, member) \
  -(type)getter {                                        \
    return member;                                       \
  }                                                      \
  -(void)setter : (type)value {                          \
    member = value;                                      \
  }

@implementation MTLCompileOptions
- (id)init {
  fast_math_ = true;
  math_mode_ = 2;
  language_version_ = (3 << 16) + 2;
  return self;
}
- (void)dealloc {
  [macros_ release];
  [super dealloc];
}
- (id)preprocessorMacros {
  return macros_;
}
- (void)setPreprocessorMacros:(NSDictionary*)macros {
  softmetal::assign(&macros_, macros);
}
SOFTMETAL_PROPERTY(bool, fastMathEnabled, setFastMathEnabled, fast_math_)
SOFTMETAL_PROPERTY(NSUInteger, languageVersion, setLanguageVersion, language_version_)
SOFTMETAL_PROPERTY(NSInteger, mathMode, setMathMode, math_mode_)
SOFTMETAL_PROPERTY(NSInteger, mathFloatingPointFunctions, setMathFloatingPointFunctions,
                   math_functions_)
SOFTMETAL_PROPERTY(NSInteger, optimizationLevel, setOptimizationLevel, optimization_)
@end

namespace {

// The type in front of the bytes.
std::string typed(const void* value, NSUInteger type) {
  const unsigned bytes = softmetal::data_type_bytes(static_cast<unsigned>(type));
  if (bytes == 0) {
    violation("MTLDataType " + std::to_string(type) + " is none of a function constant");
  }
  return std::string(1, static_cast<char>(type)) +
         std::string(static_cast<const char*>(value), bytes);
}

const std::string* given(MTLFunctionConstantValues* values,
                         const softmetal::FunctionConstant& constant) {
  if (values == nil) return nullptr;
  const std::string* found = nullptr;
  for (const auto& [index, value] : *values->by_index_) {
    if (index == constant.index) found = &value;
  }
  for (const auto& [name, value] : *values->by_name_) {
    if (name == constant.name) found = &value;
  }
  return found;
}

// Fills the constants that a kernel reads; says what is wrong.
std::string fill(const softmetal::Library& library, const softmetal::Kernel& kernel,
                 MTLFunctionConstantValues* values, std::vector<unsigned char>* to) {
  to->assign(32 * library.constant_count, 0);
  for (unsigned i = 0; i < kernel.constant_count; ++i) {
    const softmetal::FunctionConstant& constant = library.constants[kernel.constants[i]];
    const std::string name = "function constant '" + std::string(constant.name) + "' of index " +
                             std::to_string(constant.index);
    const std::string* value = given(values, constant);
    if (value == nullptr) return name + " has no value";
    const auto type = static_cast<unsigned char>((*value)[0]);
    if (type != constant.type) {
      return name + " has MTLDataType " + std::to_string(constant.type) + ", its value " +
             std::to_string(type);
    }
    std::memcpy(to->data() + constant.offset, value->data() + 1, value->size() - 1);
  }
  return "";
}

}  // namespace

@implementation MTLFunctionConstantValues
- (id)init {
  by_index_ = new std::vector<std::pair<NSUInteger, std::string>>;
  by_name_ = new std::vector<std::pair<std::string, std::string>>;
  return self;
}
- (void)dealloc {
  delete by_index_;
  delete by_name_;
  [super dealloc];
}
- (void)reset {
  by_index_->clear();
  by_name_->clear();
}
- (void)setConstantValue:(const void*)value type:(NSUInteger)type atIndex:(NSUInteger)index {
  by_index_->emplace_back(index, typed(value, type));
}
- (void)setConstantValue:(const void*)value type:(NSUInteger)type withName:(NSString*)name {
  by_name_->emplace_back(softmetal::text(name), typed(value, type));
}
- (void)setConstantValues:(const void*)values type:(NSUInteger)type withRange:(NSRange)range {
  const unsigned bytes = softmetal::data_type_bytes(static_cast<unsigned>(type));
  for (NSUInteger i = 0; i < range.length; ++i) {
    [self setConstantValue:static_cast<const char*>(values) + i * bytes
                      type:type
                   atIndex:range.location + i];
  }
}
@end

@implementation SoftMTLLibrary
- (void)dealloc {
  delete library_;
  [super dealloc];
}
- (id)functionNames {
  std::vector<id> names;
  const softmetal::Library& tables = *(*library_)->tables;
  for (unsigned i = 0; i < tables.kernel_count; ++i) {
    names.push_back(softmetal::string(tables.kernels[i].name));
  }
  return [NSArray arrayWithObjects:names.data() count:names.size()];
}
- (NSInteger)type {
  return 0;
}
- (id)newFunctionWithName:(NSString*)name
           constantValues:(MTLFunctionConstantValues*)values
                    error:(NSError**)error {
  const softmetal::Library& tables = *(*library_)->tables;
  const softmetal::Kernel* kernel = softmetal::find_kernel(tables, softmetal::text(name));
  if (kernel == nullptr) {
    softmetal::report(error, MTLLibraryErrorDomain, 5,
                      "the library has no function '" + softmetal::text(name) + "'");
    return nil;
  }
  std::vector<unsigned char> constants;
  const std::string wrong = fill(tables, *kernel, values, &constants);
  if (!wrong.empty()) {
    softmetal::report(error, MTLLibraryErrorDomain, 3, std::string(kernel->name) + ": " + wrong);
    return nil;
  }
  SoftMTLFunction* function = [[SoftMTLFunction alloc] initWithDevice:device_];
  function->library_ = new std::shared_ptr<const softmetal::LoadedLibrary>(*library_);
  function->kernel_ = kernel;
  function->constants_ = new std::vector<unsigned char>(constants);
  return function;
}
- (id)newFunctionWithName:(NSString*)name {
  return [self newFunctionWithName:name constantValues:nil error:nullptr];
}
@end

@interface MTLFunctionConstant : NSObject {
 @public
  const softmetal::FunctionConstant* constant_;
}
@end
@implementation MTLFunctionConstant
- (id)name {
  return softmetal::string(constant_->name);
}
- (NSUInteger)index {
  return constant_->index;
}
- (NSUInteger)type {
  return constant_->type;
}
- (bool)required {
  return true;
}
@end

@implementation SoftMTLFunction
- (void)dealloc {
  delete library_;
  delete constants_;
  [super dealloc];
}
- (id)name {
  return softmetal::string(kernel_->name);
}
- (NSUInteger)functionType {
  return 3;
}
- (id)functionConstantsDictionary {
  std::vector<id> names, constants;
  for (unsigned i = 0; i < kernel_->constant_count; ++i) {
    MTLFunctionConstant* constant = [[[MTLFunctionConstant alloc] init] autorelease];
    constant->constant_ = &(*library_)->tables->constants[kernel_->constants[i]];
    names.push_back([constant name]);
    constants.push_back(constant);
  }
  return [NSDictionary dictionaryWithObjects:constants.data()
                                     forKeys:names.data()
                                       count:names.size()];
}
@end
