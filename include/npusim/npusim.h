/* The C interface of npusim's runtime: loads .npubin programs and runs them.
 *
 * This file is the reference. What holds for every function unless its comment says otherwise:
 *
 * Status. A function returns NPUSIM_OK or says what kind of thing went wrong; the sentence about it
 * is npusim_last_error(), of the thread that made the call. After a failure, outputs of the
 * function are as they were before the call, and everything else may still be used.
 *
 * Handles. A handle is a name of an object, not its address: never null for one that exists, never
 * used twice. A null handle, one that was freed, or one of another type is refused with
 * NPUSIM_ERROR_HANDLE. A free function returns nothing, takes null, and ignores what is no handle.
 * An object lives on after its handle was freed while others use it: a program may be freed once an
 * executor was made of it, in any order. Nothing is freed by the other side: memory the library
 * made goes with its handle, memory of the caller is given back through the `release` that came
 * with it.
 *
 * Texts are UTF-8 and end with NUL. Texts and arrays that a function gives live as long as the
 * handle that it was asked of, unless its comment says otherwise.
 *
 * Structs begin with their size: set `struct_size` to sizeof, or use the NPUSIM_*_INIT of the
 * struct, and leave what is not needed zero, which always means the default. A library that is
 * older than the header refuses fields it does not know when they are not zero
 * (NPUSIM_ERROR_STRUCT), one that is newer takes those that are missing as zero, and writes only
 * what the struct has room for. Arrays of structs are as far apart as the `struct_size` of the
 * first, and all have the same.
 *
 * Threads. "Any thread": at any time, from any number of threads. "One at a time": from any thread,
 * and a call that overlaps another one on the same handle is refused with NPUSIM_ERROR_BUSY.
 * Handles may be freed on any thread, even while a call uses them: the object goes when the call
 * has ended.
 *
 * Callbacks are called on the thread that made the call, before it returns, except `release`, which
 * comes from whichever thread lets go last. A callback may call any function; what is running is
 * busy. A C++ exception that leaves a callback ends the call with NPUSIM_ERROR_CANCELLED, as a
 * callback does that asks for it; longjmp out of a callback is not possible.
 *
 * Sizes that calls choose. A method may have symbolic sizes (npusim_symbol); their values in a call
 * are `sizes`, one a symbol in their order. npusim_program_bind finds them from the inputs' shapes.
 */
#ifndef NPUSIM_NPUSIM_H
#define NPUSIM_NPUSIM_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(NPUSIM_BUILDS_SHARED)
#define NPUSIM_API __declspec(dllexport)
#elif defined(_WIN32) && !defined(NPUSIM_STATIC)
#define NPUSIM_API __declspec(dllimport)
#elif defined(__GNUC__)
#define NPUSIM_API __attribute__((visibility("default")))
#else
#define NPUSIM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a function or struct changes in a way that old callers notice; never otherwise. */
#define NPUSIM_ABI_VERSION 1

/* ---- status ------------------------------------------------------------------------------- */

typedef int32_t npusim_status;
enum {
  NPUSIM_OK = 0,
  NPUSIM_ERROR_FORMAT = 1,     /* a file is not sound: truncated, corrupt, hostile */
  NPUSIM_ERROR_VERSION = 2,    /* a sound file of a version or kernel this library does not have */
  NPUSIM_ERROR_WEIGHTS = 3,    /* the checkpoint does not fit the program */
  NPUSIM_ERROR_INPUT = 4,      /* an argument is wrong: count, shape, dtype, device, name */
  NPUSIM_ERROR_DEVICE = 5,     /* the device is missing, out of memory, or failed */
  NPUSIM_ERROR_LIMIT = 6,      /* a value is outside what is possible */
  NPUSIM_ERROR_DATA = 7,       /* the run met a value it cannot serve (an index out of range) */
  NPUSIM_ERROR_BUSY = 8,       /* another thread, or a callback's caller, is using the object */
  NPUSIM_ERROR_IO = 9,         /* a file cannot be opened, read, mapped or written */
  NPUSIM_ERROR_HANDLE = 10,    /* a handle is null, was freed, or is of another type */
  NPUSIM_ERROR_STRUCT = 11,    /* a struct's size is wrong, or it asks for what is not known here */
  NPUSIM_ERROR_MEMORY = 12,    /* the host is out of memory */
  NPUSIM_ERROR_CANCELLED = 13, /* a callback asked for the end, or threw */
  NPUSIM_ERROR_UNSUPPORTED = 14, /* this build of the library leaves it out */
  NPUSIM_ERROR_INTERNAL = 15     /* a defect of npusim: please report its sentence */
};

/* The NPUSIM_ABI_VERSION that the library was built with. Any thread. */
NPUSIM_API uint32_t npusim_abi_version(void);
/* The version of the library, such as "0.1.0"; lives for ever. Any thread. */
NPUSIM_API const char* npusim_version(void);
/* The name of a status, such as "NPUSIM_ERROR_INPUT"; lives for ever. Any thread. */
NPUSIM_API const char* npusim_status_name(npusim_status status);
/* What went wrong in the latest call of this thread that failed, as a sentence; empty before the
 * first. Never null; lives until a call of this thread fails again. Any thread. */
NPUSIM_API const char* npusim_last_error(void);

/* ---- dtypes ------------------------------------------------------------------------------- */

typedef int32_t npusim_dtype;
enum {
  NPUSIM_FLOAT32 = 0,
  NPUSIM_FLOAT16 = 1,
  NPUSIM_BFLOAT16 = 2,
  NPUSIM_FLOAT64 = 3,
  NPUSIM_INT64 = 4,
  NPUSIM_INT32 = 5,
  NPUSIM_INT16 = 6,
  NPUSIM_INT8 = 7,
  NPUSIM_UINT8 = 8,
  NPUSIM_BOOL = 9 /* a byte, 0 or 1 */
};

/* "float32"; null for what is no dtype. Lives for ever. Any thread. */
NPUSIM_API const char* npusim_dtype_name(npusim_dtype dtype);
/* Bytes of an element; 0 for what is no dtype. Any thread. */
NPUSIM_API size_t npusim_dtype_size(npusim_dtype dtype);

/* ---- handles ------------------------------------------------------------------------------ */

typedef struct npusim_device npusim_device;
typedef struct npusim_program npusim_program;
typedef struct npusim_weights npusim_weights;
typedef struct npusim_state npusim_state;
typedef struct npusim_buffer npusim_buffer;
typedef struct npusim_executor npusim_executor;
typedef struct npusim_language_model npusim_language_model;
typedef struct npusim_language_session npusim_language_session;
typedef struct npusim_sampler npusim_sampler;
typedef struct npusim_engine npusim_engine;

/* All: any thread. */
NPUSIM_API void npusim_device_free(npusim_device* device);
NPUSIM_API void npusim_program_free(npusim_program* program);
NPUSIM_API void npusim_weights_free(npusim_weights* weights);
NPUSIM_API void npusim_state_free(npusim_state* state);
NPUSIM_API void npusim_buffer_free(npusim_buffer* buffer);
NPUSIM_API void npusim_executor_free(npusim_executor* executor);
NPUSIM_API void npusim_language_model_free(npusim_language_model* model);
NPUSIM_API void npusim_language_session_free(npusim_language_session* session);
NPUSIM_API void npusim_sampler_free(npusim_sampler* sampler);
/* Ends what it serves; waits for the step that runs. */
NPUSIM_API void npusim_engine_free(npusim_engine* engine);

/* Called when the library needs memory of the caller no more; on any thread. */
typedef void (*npusim_release)(void* context);
/* Asked now and then while something runs; not 0 ends it with NPUSIM_ERROR_CANCELLED. */
typedef int (*npusim_should_cancel)(void* context);

/* ---- devices ------------------------------------------------------------------------------ */

/* An option by name, with its value as text: numbers as digits, truth as "true" or "false". */
typedef struct npusim_option {
  size_t struct_size;
  const char* name;
  const char* value;
} npusim_option;

typedef struct npusim_device_options {
  size_t struct_size;
  const npusim_option* options; /* such as {"threads", "4"}; docs/embedding.md lists them */
  size_t option_count;
  const char* const* library_folders; /* where else optional libraries of CUDA may lie */
  size_t library_folder_count;
  /* Asked by runs on the cpu, on the thread that runs, about once in many millions of steps. The
   * content of the outputs and states of a run that it ends is undefined. */
  npusim_should_cancel should_cancel;
  void* context;
} npusim_device_options;
#define NPUSIM_DEVICE_OPTIONS_INIT {sizeof(npusim_device_options), 0, 0, 0, 0, 0, 0}

typedef struct npusim_device_info {
  size_t struct_size;
  const char* name;         /* "cpu" */
  const char* kind;         /* devices of one kind share prepared weights */
  const char* description;  /* for people: processor, instruction set, threads */
  size_t alignment;         /* what the address of a borrowed tensor has to be a multiple of */
  uint64_t stream;          /* the device's own; 0: it has no streams */
  int32_t ordinal;          /* which of several */
  int32_t uses_host_memory; /* kernels run over memory of the host where it lies */
  int32_t host_visible;     /* the host can read the device's memory itself */
  int32_t synchronous;      /* nothing is under way when a call returns */
  int32_t dlpack_type, dlpack_id; /* DLPack's name of it; 0, 0: it has none */
} npusim_device_info;
#define NPUSIM_DEVICE_INFO_INIT {sizeof(npusim_device_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* How many kinds of device this build has, and their names in order of preference; a name lives for
 * ever. Null for no such index. Any thread. */
NPUSIM_API size_t npusim_device_count(void);
NPUSIM_API const char* npusim_device_name(size_t index);

/* Opens a device by name. `options` may be null. NPUSIM_ERROR_DEVICE: an unknown name or option, a
 * value it cannot serve, no such hardware. Any thread. */
NPUSIM_API npusim_status npusim_device_open(const char* name, const npusim_device_options* options,
                                            npusim_device** device);
/* Any thread. */
NPUSIM_API npusim_status npusim_device_get_info(npusim_device* device, npusim_device_info* info);
/* Waits for all work that was given to the device. Any thread. */
NPUSIM_API npusim_status npusim_device_synchronize(npusim_device* device);
/* Streams are those of the device's other libraries (CUDA: a cudaStream_t as a number), 0 is the
 * device's own. Lets what is put into `after` from now on wait for what `before` holds; the host
 * goes on. NPUSIM_ERROR_INPUT for a device that has none. Any thread. */
NPUSIM_API npusim_status npusim_device_order(npusim_device* device, uint64_t before,
                                             uint64_t after);

/* ---- programs ----------------------------------------------------------------------------- */

typedef struct npusim_program_info {
  size_t struct_size;
  const char* target;   /* the device that runs it, such as "cpu" */
  const char* metadata; /* JSON for people and tools */
  uint64_t fingerprint; /* of the file's bytes: tells programs apart, is no signature */
  size_t method_count;  /* at least 1; the first is the default */
  size_t weight_count;  /* tensors that it asks of a checkpoint */
  size_t state_count;   /* tensors that survive from run to run, by name */
  int64_t state_bytes;
  int64_t persistent_bytes; /* of weights that are prepared at load */
  int64_t declared_bytes;   /* what the device option max_memory is compared with */
} npusim_program_info;
#define NPUSIM_PROGRAM_INFO_INIT {sizeof(npusim_program_info), 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct npusim_method_info {
  size_t struct_size;
  const char* name;
  size_t input_count, output_count;
  size_t symbol_count;  /* sizes that calls choose; 0: all shapes are fixed */
  size_t command_count; /* of a run */
  int64_t arena_bytes;  /* of memory for what lies between */
} npusim_method_info;
#define NPUSIM_METHOD_INFO_INIT {sizeof(npusim_method_info), 0, 0, 0, 0, 0, 0}

/* A tensor that a program has: an input, an output, a weight, a state. */
typedef struct npusim_tensor_info {
  size_t struct_size;
  const char* name;        /* of a weight: its key in the checkpoint */
  const int64_t* shape;    /* where sizes are symbolic, the greatest */
  const char* const* dims; /* each as text, such as "4*seq + 1" or "8" */
  size_t rank;
  size_t bytes; /* dense, at these sizes */
  npusim_dtype dtype;
  int32_t reserved;
} npusim_tensor_info;
#define NPUSIM_TENSOR_INFO_INIT {sizeof(npusim_tensor_info), 0, 0, 0, 0, 0, 0, 0}

/* A size that calls choose, within bounds that are both included. */
typedef struct npusim_symbol {
  size_t struct_size;
  const char* name;
  int64_t low, high;
} npusim_symbol;
#define NPUSIM_SYMBOL_INIT {sizeof(npusim_symbol), 0, 0, 0}

/* Where a command comes from. */
typedef struct npusim_command_info {
  size_t struct_size;
  const char* kernel;
  const char* node;   /* of the graph */
  const char* op;     /* its operator */
  const char* source; /* "module, file:line"; may be empty */
} npusim_command_info;
#define NPUSIM_COMMAND_INFO_INIT {sizeof(npusim_command_info), 0, 0, 0, 0}

/* Tells which tensors of a method a function means. */
typedef int32_t npusim_side;
enum { NPUSIM_INPUT = 0, NPUSIM_OUTPUT = 1 };

/* Reads and validates a .npubin file, or a copy of its bytes. Any thread. */
NPUSIM_API npusim_status npusim_program_open(const char* path, npusim_program** program);
NPUSIM_API npusim_status npusim_program_from_memory(const void* data, size_t bytes,
                                                    npusim_program** program);
/* Facts; NPUSIM_ERROR_INPUT for an index that is too great or a name that there is not. An empty or
 * null method name means the first. All: any thread. */
NPUSIM_API npusim_status npusim_program_get_info(npusim_program* program,
                                                 npusim_program_info* info);
NPUSIM_API npusim_status npusim_program_find_method(npusim_program* program, const char* name,
                                                    size_t* method);
NPUSIM_API npusim_status npusim_program_get_method(npusim_program* program, size_t method,
                                                   npusim_method_info* info);
NPUSIM_API npusim_status npusim_program_find_tensor(npusim_program* program, size_t method,
                                                    npusim_side side, const char* name,
                                                    size_t* index);
NPUSIM_API npusim_status npusim_program_get_tensor(npusim_program* program, size_t method,
                                                   npusim_side side, size_t index,
                                                   npusim_tensor_info* info);
NPUSIM_API npusim_status npusim_program_get_symbol(npusim_program* program, size_t method,
                                                   size_t index, npusim_symbol* symbol);
NPUSIM_API npusim_status npusim_program_get_command(npusim_program* program, size_t method,
                                                    size_t index, npusim_command_info* info);
NPUSIM_API npusim_status npusim_program_get_weight(npusim_program* program, size_t index,
                                                   npusim_tensor_info* info);
NPUSIM_API npusim_status npusim_program_get_state(npusim_program* program, size_t index,
                                                  npusim_tensor_info* info);
/* The values of a method's symbols that the shapes of all its inputs imply. `shapes` and `ranks`
 * have an entry an input; `sizes` has room for `size_count` numbers, which is the method's
 * symbol_count. NPUSIM_ERROR_INPUT names the dimension that does not fit, and what is possible. Any
 * thread. */
NPUSIM_API npusim_status npusim_program_bind(npusim_program* program, size_t method,
                                             const int64_t* const* shapes, const size_t* ranks,
                                             size_t input_count, int64_t* sizes, size_t size_count);
/* The shape of an input or output at values of the symbols; `rank` is its rank. Any thread. */
NPUSIM_API npusim_status npusim_program_shape_at(npusim_program* program, size_t method,
                                                 npusim_side side, size_t index,
                                                 const int64_t* sizes, size_t size_count,
                                                 int64_t* shape, size_t rank);

/* ---- tensors of the host ------------------------------------------------------------------ */

/* A dense row-major tensor in memory of the caller. */
typedef struct npusim_tensor {
  size_t struct_size;
  const char* name; /* null: the one that its place in the array says; all or none have names */
  void* data;
  size_t bytes;         /* of an input, what the shape says; of an output, at least that */
  const int64_t* shape; /* of an output, may be null: whatever the call makes it */
  size_t rank;
  npusim_dtype dtype;
  int32_t reserved;
} npusim_tensor;
#define NPUSIM_TENSOR_INIT {sizeof(npusim_tensor), 0, 0, 0, 0, 0, 0, 0}

/* ---- weights ------------------------------------------------------------------------------ */

/* A beginning of the program's keys, and what the checkpoint has in its place. */
typedef struct npusim_renaming {
  size_t struct_size;
  const char* program_prefix;
  const char* checkpoint_prefix;
} npusim_renaming;

typedef struct npusim_weights_options {
  size_t struct_size;
  int32_t check_nan; /* refuse tensors that hold NaN */
  int32_t copy;      /* use no tensor where it lies */
  const npusim_renaming* renamings;
  size_t renaming_count;
  /* Told of the bytes that were prepared, and of all; not 0 ends the loading. */
  int (*progress)(void* context, int64_t done, int64_t total);
  void* context;
} npusim_weights_options;
#define NPUSIM_WEIGHTS_OPTIONS_INIT {sizeof(npusim_weights_options), 0, 0, 0, 0, 0, 0}

typedef struct npusim_weights_info {
  size_t struct_size;
  size_t extra_count; /* tensors of the checkpoint that the program does not use */
  const char* const* extra;
  int32_t in_place; /* tensors of the checkpoint are used where they lie */
  int32_t reserved;
  const char* note; /* why packed weights had to be prepared anew; empty where they had not */
} npusim_weights_info;
#define NPUSIM_WEIGHTS_INFO_INIT {sizeof(npusim_weights_info), 0, 0, 0, 0, 0}

/* Loads a program's weights for a device: from a .safetensors file, an index of shards or a folder
 * that holds either, or from what npusim_weights_pack wrote. `options` may be null.
 * NPUSIM_ERROR_WEIGHTS names every tensor that is missing or does not fit. The file must not change
 * while the weights are used. Any thread. */
NPUSIM_API npusim_status npusim_weights_open(npusim_program* program, npusim_device* device,
                                             const char* path,
                                             const npusim_weights_options* options,
                                             npusim_weights** weights);
/* The same from tensors in memory, which have names. Unless `copy` is set they are used where they
 * lie, and must stay and not change until `release` is called; it is called exactly once, also
 * where this fails (then before it returns), and may be null. Any thread. */
NPUSIM_API npusim_status npusim_weights_from_tensors(npusim_program* program, npusim_device* device,
                                                     const npusim_tensor* tensors, size_t count,
                                                     const npusim_weights_options* options,
                                                     npusim_release release, void* context,
                                                     npusim_weights** weights);
/* Any thread. */
NPUSIM_API npusim_status npusim_weights_get_info(npusim_weights* weights,
                                                 npusim_weights_info* info);
/* NPUSIM_ERROR_IO when a file that is used where it lies was changed in place. Any thread. */
NPUSIM_API npusim_status npusim_weights_check(npusim_weights* weights);
/* Writes weights as the program prepared them to a file, whole or not at all: npusim_weights_open
 * maps it in no time. Where it does not fit, because the device has another instruction set, the
 * program prepares weights in another way or the library is another, they are prepared anew from
 * the checkpoint that the file names, and npusim_weights_info has a note. Any thread. */
NPUSIM_API npusim_status npusim_weights_pack(npusim_weights* weights, const char* path);

/* ---- buffers ------------------------------------------------------------------------------ */

typedef struct npusim_buffer_info {
  size_t struct_size;
  const int64_t* shape;
  size_t rank;
  size_t bytes;     /* dense, of the shape */
  uint64_t address; /* on the device; 0 where its memory has none */
  npusim_dtype dtype;
  int32_t writable;
  int32_t borrowed; /* others use the memory as well */
  int32_t padded;   /* rows lie further apart than the shape says */
} npusim_buffer_info;
#define NPUSIM_BUFFER_INFO_INIT {sizeof(npusim_buffer_info), 0, 0, 0, 0, 0, 0, 0, 0}

/* Whether memory of the host is copied to the device or used where it lies. */
typedef int32_t npusim_copy;
enum { NPUSIM_COPY_IF_NEEDED = 0, NPUSIM_COPY_ALWAYS = 1, NPUSIM_COPY_NEVER = 2 };

/* A tensor of zeros. Any thread. */
NPUSIM_API npusim_status npusim_buffer_allocate(npusim_device* device, npusim_dtype dtype,
                                                const int64_t* shape, size_t rank,
                                                npusim_buffer** buffer);
/* A tensor of zeros for an input or output of a method at values of its symbols (none: the
 * greatest), padded where the device asks for it. Any thread. */
NPUSIM_API npusim_status npusim_buffer_for(npusim_executor* executor, size_t method,
                                           npusim_side side, size_t index, const int64_t* sizes,
                                           size_t size_count, npusim_buffer** buffer);
/* A tensor over memory of the host, dense. `release`, which may be null, is called exactly once
 * when the memory is needed no more; also where this fails, then before it returns. Any thread. */
NPUSIM_API npusim_status npusim_buffer_from_host(npusim_device* device, const npusim_tensor* tensor,
                                                 npusim_copy copy, npusim_release release,
                                                 void* context, npusim_buffer** buffer);
/* A tensor over memory of the device that something else owns, such as what cudaMalloc gave; what
 * is there is the caller's to ensure. `release` as above. Any thread. */
NPUSIM_API npusim_status npusim_buffer_at(npusim_device* device, npusim_dtype dtype,
                                          const int64_t* shape, size_t rank, uint64_t address,
                                          npusim_release release, void* context,
                                          npusim_buffer** buffer);
/* DLPack's tensor of version 0.x (https://dmlc.github.io/dlpack). Taking one over needs it dense,
 * on the device; when this returns NPUSIM_OK the tensor is the library's, which calls its deleter;
 * else it still is the caller's. A tensor that is given is the caller's, who calls its deleter;
 * with a null `stream` the host waits until it has been computed, else that stream does. Any
 * thread. */
struct DLManagedTensor;
NPUSIM_API npusim_status npusim_buffer_from_dlpack(npusim_device* device,
                                                   struct DLManagedTensor* tensor, npusim_copy copy,
                                                   npusim_buffer** buffer);
NPUSIM_API npusim_status npusim_buffer_to_dlpack(npusim_buffer* buffer, const int64_t* stream,
                                                 struct DLManagedTensor** tensor);
/* Any thread. */
NPUSIM_API npusim_status npusim_buffer_get_info(npusim_buffer* buffer, npusim_buffer_info* info);
/* Copies all elements, dense, from and to the host; `bytes` is the info's. Behind all work that the
 * device has. Any thread, while no run uses the buffer. */
NPUSIM_API npusim_status npusim_buffer_write(npusim_buffer* buffer, const void* data, size_t bytes);
NPUSIM_API npusim_status npusim_buffer_read(npusim_buffer* buffer, void* data, size_t bytes);
/* Copies one buffer to another of the same device and size. Any thread, as above. */
NPUSIM_API npusim_status npusim_buffer_copy(npusim_buffer* to, npusim_buffer* from);
/* Where the host reads and writes the memory, when all work on it is over; NPUSIM_ERROR_DEVICE
 * where it cannot. Valid as long as the buffer. Any thread, as above. */
NPUSIM_API npusim_status npusim_buffer_map(npusim_buffer* buffer, void** data);

/* ---- states ------------------------------------------------------------------------------- */

/* What survives from run to run, of one session; zero at first. Any thread. */
NPUSIM_API npusim_status npusim_state_create(npusim_program* program, npusim_device* device,
                                             npusim_state** state);
/* Another state with the same content. Any thread, while no run uses the state; so the next two. */
NPUSIM_API npusim_status npusim_state_copy(npusim_state* state, npusim_state** copy);
/* All of one tensor of the program (npusim_program_get_state), by name; `bytes` is the info's. */
NPUSIM_API npusim_status npusim_state_read(npusim_state* state, const char* name, void* data,
                                           size_t bytes);
NPUSIM_API npusim_status npusim_state_write(npusim_state* state, const char* name, const void* data,
                                            size_t bytes);

/* ---- executors ---------------------------------------------------------------------------- */

typedef struct npusim_run_options {
  size_t struct_size;
  npusim_weights* weights; /* null: the program has none */
  npusim_state* state;     /* null: the executor's own */
  const int64_t* sizes;    /* of npusim_executor_run: values of the symbols; null: the greatest */
  size_t size_count;
  uint64_t stream; /* where the work goes, see npusim_device_order; 0: the device's own */
  /* The run returns when the work is in its stream: buffers must stay as they are until it is done,
   * and npusim_executor_settle says what it met. */
  int32_t enqueue;
  int32_t reserved;
  /* Called after each command, one at a time: for profiles and for looking at values
   * (npusim_executor_read_buffer); not 0 ends the run. */
  int (*after_command)(void* context, size_t command);
  void* context;
  /* Filled with how long each command took, in seconds, run one at a time: command_count numbers.
   * Not together with after_command. */
  double* seconds;
  size_t second_count;
} npusim_run_options;
#define NPUSIM_RUN_OPTIONS_INIT {sizeof(npusim_run_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Makes a program ready for a device: all that can be done before inputs are known. Any thread. */
NPUSIM_API npusim_status npusim_executor_create(npusim_program* program, npusim_device* device,
                                                npusim_executor** executor);
/* Runs a method over tensors of the host, by name or in order, and returns when the outputs are
 * there. Sizes come from the inputs' shapes. An output may be left out, by name. `options` may be
 * null. One at a time: threads that run in parallel have an executor each, and share weights. */
NPUSIM_API npusim_status npusim_executor_call(npusim_executor* executor, size_t method,
                                              const npusim_tensor* inputs, size_t input_count,
                                              const npusim_tensor* outputs, size_t output_count,
                                              const npusim_run_options* options);
/* Runs a method over buffers of the executor's device, in the order of the method. An output may
 * lie where an input lies; outputs may not overlap. `options` may be null. One at a time. */
NPUSIM_API npusim_status npusim_executor_run(npusim_executor* executor, size_t method,
                                             npusim_buffer* const* inputs, size_t input_count,
                                             npusim_buffer* const* outputs, size_t output_count,
                                             const npusim_run_options* options);
/* Waits for the latest run of a method that was enqueued, and returns what it met. One at a time.
 */
NPUSIM_API npusim_status npusim_executor_settle(npusim_executor* executor, size_t method);
/* Makes a method ready for sizes that calls will have. One at a time. */
NPUSIM_API npusim_status npusim_executor_prepare(npusim_executor* executor, size_t method,
                                                 const int64_t* sizes, size_t size_count);
/* The library that computes a command of a method, such as cuBLASLt with its version; "" for a
 * kernel of npusim. Lives as long as the executor. Any thread. */
NPUSIM_API npusim_status npusim_executor_implementation(npusim_executor* executor, size_t method,
                                                        size_t command, const char** name);
/* The bytes of one of the program's buffers, within after_command: `needed` is how many there are,
 * 0 where it is not bound; as many are written as `bytes` has room for. `data` may be null with 0
 * bytes, `needed` may be null. Within callbacks; else one at a time, and only what is the
 * executor's own. */
NPUSIM_API npusim_status npusim_executor_read_buffer(npusim_executor* executor, uint32_t buffer,
                                                     void* data, size_t bytes, size_t* needed);
/* Replaces the first bytes of one of the program's buffers that commands write (between them, an
 * output, a state), within after_command: the commands that follow read what is given here.
 * NPUSIM_ERROR_INPUT where it is none of these, has no memory of the executor's own, or holds fewer
 * than `bytes`. Threads as the function before. */
NPUSIM_API npusim_status npusim_executor_write_buffer(npusim_executor* executor, uint32_t buffer,
                                                      const void* data, size_t bytes);
/* Sets the executor's own state back to zeros. One at a time. */
NPUSIM_API npusim_status npusim_executor_reset(npusim_executor* executor);

/* ---- language models ---------------------------------------------------------------------- */
/* NPUSIM_ERROR_UNSUPPORTED in a library that was built without them. */

typedef struct npusim_language_model_info {
  size_t struct_size;
  int64_t max_context;   /* tokens that a session holds at most */
  int64_t prefill_chunk; /* tokens that are read at once */
  int64_t vocab_size;
  const int64_t* eos_token_ids;
  size_t eos_token_count;
} npusim_language_model_info;
#define NPUSIM_LANGUAGE_MODEL_INFO_INIT {sizeof(npusim_language_model_info), 0, 0, 0, 0, 0}

/* How the next token is chosen; zeros choose the likeliest. */
typedef struct npusim_sampler_options {
  size_t struct_size;
  double temperature;        /* 0: the likeliest token */
  int64_t top_k;             /* 0: all tokens */
  double top_p;              /* in (0, 1]; 0 means 1 */
  double min_p;              /* in [0, 1] */
  double repetition_penalty; /* greater than 0; 0 means 1 */
  uint64_t seed;
} npusim_sampler_options;
#define NPUSIM_SAMPLER_OPTIONS_INIT {sizeof(npusim_sampler_options), 0, 0, 0, 0, 0, 0}

/* Tokens whose end ends the text. */
typedef struct npusim_token_sequence {
  size_t struct_size;
  const int64_t* tokens;
  size_t count;
} npusim_token_sequence;

typedef struct npusim_generation_options {
  size_t struct_size;
  int64_t max_new_tokens; /* 0: as many as the context holds */
  int32_t ignore_eos;     /* go on after the model's end-of-text tokens */
  int32_t reserved;
  const int64_t* stop_tokens;
  size_t stop_token_count;
  const npusim_token_sequence* stop_sequences;
  size_t stop_sequence_count;
  /* Sees each new token at once; not 0 ends the text, which is no error. */
  int (*on_token)(void* context, int64_t token);
  void* context;
} npusim_generation_options;
#define NPUSIM_GENERATION_OPTIONS_INIT \
  {sizeof(npusim_generation_options), 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef int32_t npusim_finish_reason;
enum {
  NPUSIM_FINISHED_LENGTH = 0,  /* max_new_tokens were made */
  NPUSIM_FINISHED_CONTEXT = 1, /* the context is full */
  NPUSIM_FINISHED_STOP = 2,    /* a stop token or sequence */
  NPUSIM_FINISHED_CALLER = 3   /* on_token asked for it */
};

typedef struct npusim_generation {
  size_t struct_size;
  size_t token_count; /* new ones: the last of the session's tokens */
  npusim_finish_reason reason;
  int32_t reserved;
} npusim_generation;
#define NPUSIM_GENERATION_INIT {sizeof(npusim_generation), 0, 0, 0}

/* `weights` may be null when the program has none. NPUSIM_ERROR_INPUT for a program that is no
 * language model. Any thread: sessions on several threads share a model, their runs take turns. */
NPUSIM_API npusim_status npusim_language_model_create(npusim_program* program,
                                                      npusim_device* device,
                                                      npusim_weights* weights,
                                                      npusim_language_model** model);
/* Any thread. */
NPUSIM_API npusim_status npusim_language_model_get_info(npusim_language_model* model,
                                                        npusim_language_model_info* info);

/* One conversation with a model, without tokens at first. Any thread. */
NPUSIM_API npusim_status npusim_language_session_create(npusim_language_model* model,
                                                        npusim_language_session** session);
/* All functions of a session: one at a time. */
/* Puts tokens after those there are. `should_cancel` may be null; it is asked between the runs that
 * the tokens take, and a call that fails leaves the session as it was. */
NPUSIM_API npusim_status npusim_language_session_append(npusim_language_session* session,
                                                        const int64_t* tokens, size_t count,
                                                        npusim_should_cancel should_cancel,
                                                        void* context);
/* How many tokens the session has. */
NPUSIM_API npusim_status npusim_language_session_position(npusim_language_session* session,
                                                          int64_t* position);
/* Copies `count` tokens from the token `first` on. */
NPUSIM_API npusim_status npusim_language_session_tokens(npusim_language_session* session,
                                                        int64_t first, int64_t* tokens,
                                                        size_t count);
/* Copies the scores of the next token: vocab_size numbers. */
NPUSIM_API npusim_status npusim_language_session_logits(npusim_language_session* session,
                                                        float* logits, size_t count);
/* Chooses the next token and puts it after the others. `more`: the caller means to go on with the
 * same sampler. */
NPUSIM_API npusim_status npusim_language_session_step(npusim_language_session* session,
                                                      npusim_sampler* sampler, int32_t more,
                                                      int64_t* token);
/* Continues the text until something says stop. `options` and `made` may be null. The session keeps
 * the tokens made when this fails. */
NPUSIM_API npusim_status npusim_language_session_generate(npusim_language_session* session,
                                                          npusim_sampler* sampler,
                                                          const npusim_generation_options* options,
                                                          npusim_generation* made);
/* Puts tokens after those there are, one by one; writes the natural logarithm of each one's
 * probability, of a session's very first token 0. As append when it fails. */
NPUSIM_API npusim_status npusim_language_session_score(npusim_language_session* session,
                                                       const int64_t* tokens, size_t count,
                                                       double* log_probabilities);
/* Another session that continues from here on its own. */
NPUSIM_API npusim_status npusim_language_session_fork(npusim_language_session* session,
                                                      npusim_language_session** fork);
/* Goes back to when there were `position` tokens. */
NPUSIM_API npusim_status npusim_language_session_rewind(npusim_language_session* session,
                                                        int64_t position);
/* Writes the session to a file, whole or not at all; reads one that the same program wrote. */
NPUSIM_API npusim_status npusim_language_session_save(npusim_language_session* session,
                                                      const char* path);
NPUSIM_API npusim_status npusim_language_session_load(npusim_language_session* session,
                                                      const char* path);

/* `options` may be null. NPUSIM_ERROR_LIMIT names every option that is out of range. Any thread. */
NPUSIM_API npusim_status npusim_sampler_create(const npusim_sampler_options* options,
                                               npusim_sampler** sampler);
/* Chooses among `count` scores; `history` are the tokens so far, for the repetition penalty. One at
 * a time. */
NPUSIM_API npusim_status npusim_sampler_sample(npusim_sampler* sampler, const float* logits,
                                               size_t count, const int64_t* history,
                                               size_t history_count, int64_t* token);

/* ---- engines: many requests to one language model ------------------------------------------ */
/* NPUSIM_ERROR_UNSUPPORTED in a library that was built without NPUSIM_SERVE. All functions: any
 * thread. In a process that was forked from the engine's, those that would need its thread are
 * NPUSIM_ERROR_BUSY. What a device was opened to ask (should_cancel), it asks on the engine's
 * thread: not 0 fails the requests of the step. */

typedef struct npusim_engine_options {
  size_t struct_size;
  int64_t max_requests;    /* that run at a time, at most; 0: as many as the program takes */
  int64_t max_step_tokens; /* rows of a step, at most; 0: as many as the program takes */
  int64_t max_waiting;     /* requests beside those that can run; 0 means 1024, -1 none */
  int64_t patience;        /* how many may overtake a request; 0 means 256 */
  double step_seconds;     /* how long prompts may make a step, about; 0: no bound */
  int32_t no_prefix_cache; /* requests never share pages */
  int32_t reserved;
} npusim_engine_options;
#define NPUSIM_ENGINE_OPTIONS_INIT {sizeof(npusim_engine_options), 0, 0, 0, 0, 0, 0, 0}

typedef struct npusim_engine_info {
  size_t struct_size;
  int64_t vocab_size;
  int64_t max_context;  /* tokens of a request, prompt and answer */
  int64_t page_tokens;  /* of the cache: tokens of one page */
  int64_t pages;        /* of all requests together */
  int64_t max_requests; /* that run at a time */
  int64_t max_step_tokens;
  const int64_t* eos_token_ids;
  size_t eos_token_count;
} npusim_engine_info;
#define NPUSIM_ENGINE_INFO_INIT {sizeof(npusim_engine_info), 0, 0, 0, 0, 0, 0, 0, 0}

/* Scores are changed in this order: biases, the penalties of presence and frequency, what may not
 * come; then as a sampler does it. */
typedef struct npusim_request_options {
  size_t struct_size;
  int64_t max_tokens; /* new ones; 0: as many as the context holds, -1: none */
  int64_t min_tokens; /* before so many, no stop token is chosen */
  double temperature; /* these six as npusim_sampler_options has them */
  int64_t top_k;
  double top_p;
  double min_p;
  double repetition_penalty;
  uint64_t seed;
  double presence_penalty;  /* subtracted from the scores of tokens that the answer has */
  double frequency_penalty; /* the same, times how often */
  const int64_t* stop_tokens;
  size_t stop_token_count;
  const int64_t* bias_tokens; /* whose scores are changed, by bias_values */
  const float* bias_values;
  size_t bias_count;
  int64_t priority;          /* the smaller, the sooner */
  const char* salt;          /* only requests with the same one share pages; null: an empty one */
  int32_t ignore_eos;        /* go on after the model's end-of-text tokens */
  int32_t log_probabilities; /* tell those of the tokens */
  int32_t masked;            /* each token waits for npusim_engine_allow */
  int32_t no_prefix_cache;   /* share no pages */
  /* A request of this engine that begins alike, whose beginning is then computed once: this one
   * waits until that one's prompt is there. 0, or one that has ended: nobody is waited for. */
  uint64_t follows;
} npusim_request_options;
#define NPUSIM_REQUEST_OPTIONS_INIT \
  {sizeof(npusim_request_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* What came of a request since its last event. */
typedef struct npusim_engine_event {
  size_t struct_size;
  uint64_t request;
  const int64_t* tokens;
  size_t token_count;
  const double* log_probabilities; /* one a token, natural logarithms; null: not asked for */
  int64_t cached_tokens;           /* of the prompt, found in pages */
  int32_t has_ended;               /* nothing comes after this event */
  npusim_finish_reason reason;     /* of one that has ended without an error */
  npusim_status status;            /* why it failed, else NPUSIM_OK */
  int32_t reserved;
  const char* error; /* a sentence about it, else empty */
} npusim_engine_event;

typedef struct npusim_engine_stats {
  size_t struct_size;
  int64_t running, waiting;              /* requests */
  int64_t pages, free_pages, kept_pages; /* of the free ones, those with content */
  int64_t steps, failed_steps, preemptions;
  int64_t prompt_tokens, generated_tokens; /* that were computed; that were made */
  int64_t prefix_queries, prefix_hits;     /* tokens of prompts; those found in pages */
  double runner_seconds;                   /* in which steps ran */
} npusim_engine_stats;
#define NPUSIM_ENGINE_STATS_INIT \
  {sizeof(npusim_engine_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* `weights` may be null when the program has none, and `options` in any case. NPUSIM_ERROR_INPUT
 * for a program without the method `step`. The engine has a thread of its own. */
NPUSIM_API npusim_status npusim_engine_create(npusim_program* program, npusim_device* device,
                                              npusim_weights* weights,
                                              const npusim_engine_options* options,
                                              npusim_engine** engine);
NPUSIM_API npusim_status npusim_engine_get_info(npusim_engine* engine, npusim_engine_info* info);
/* Takes a request, under a number that is never used again. `options` may be null.
 * NPUSIM_ERROR_LIMIT for what can never be served; NPUSIM_ERROR_BUSY when as many wait as may, or
 * after drain or close; NPUSIM_ERROR_DEVICE when the engine has failed. */
NPUSIM_API npusim_status npusim_engine_submit(npusim_engine* engine, const int64_t* tokens,
                                              size_t count, const npusim_request_options* options,
                                              uint64_t* request);
/* Ends a request; nothing tells of it afterwards. Ignores what is none. */
NPUSIM_API npusim_status npusim_engine_cancel(npusim_engine* engine, uint64_t request);
/* Which tokens may come next to a request that is `masked`: vocab_size bytes, not 0 for those that
 * may. Ignores what is no request. */
NPUSIM_API npusim_status npusim_engine_allow(npusim_engine* engine, uint64_t request,
                                             const uint8_t* mask, size_t count);
/* Waits for news, so many seconds at most, and calls `on_event` for each; what an event points to
 * lives until that returns. Not 0 from it is NPUSIM_ERROR_CANCELLED; the events behind that one
 * come with the next poll. */
NPUSIM_API npusim_status npusim_engine_poll(npusim_engine* engine, double seconds,
                                            int (*on_event)(void* context,
                                                            const npusim_engine_event* event),
                                            void* context);
NPUSIM_API npusim_status npusim_engine_get_stats(npusim_engine* engine, npusim_engine_stats* stats);
/* Takes no more requests, and waits until all have ended, so many seconds at most; `has_ended`,
 * which may be null, says whether they have. */
NPUSIM_API npusim_status npusim_engine_drain(npusim_engine* engine, double seconds,
                                             int32_t* has_ended);
/* Ends all requests with NPUSIM_ERROR_BUSY as the status of their last event, which can still be
 * polled, and the thread. */
NPUSIM_API npusim_status npusim_engine_close(npusim_engine* engine);

#ifdef __cplusplus
}
#endif

#endif
