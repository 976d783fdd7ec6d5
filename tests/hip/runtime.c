/* A stand-in for HIP's runtime library: each function has the signature of HIP's own header, which is included, and asks
   Python what it gives. `given` are the arguments in order, but for those that are written: one number, `written`. */
#include <hip/hip_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int (*answer_type)(const char *name, int count, const uint64_t *given, uint64_t *written);
static answer_type answer;
static char text[1024];

void set_answer(answer_type function) { answer = function; }
char *last_text(void) { return text; }

/* Of the header: what the caller has as numbers. */
const uint64_t sizes[] = {sizeof(hipDeviceProp_tR0600), offsetof(hipDeviceProp_tR0600, gcnArchName),
                          sizeof(((hipDeviceProp_tR0600 *)0)->gcnArchName)};
const int numbers[] = {hipDeviceAttributeMaxSharedMemoryPerBlock, hipStreamNonBlocking,
                       hipStreamCaptureModeRelaxed, hipErrorOutOfMemory, hipErrorNoDevice};

#define WORD(value) ((uint64_t)(uintptr_t)(value))
#define ASK(name, ...)                                                        \
  uint64_t given[] = {__VA_ARGS__};                                           \
  uint64_t written = 0;                                                       \
  hipError_t status = (hipError_t)answer(name, (int)(sizeof given / sizeof *given), given, &written)
#define GIVES_STATUS(name, ...) { ASK(name, __VA_ARGS__); return status; }
#define GIVES(name, place, type, ...)                                         \
  { ASK(name, __VA_ARGS__); if (status == hipSuccess) *(place) = (type)written; return status; }

hipError_t hipInit(unsigned int flags) GIVES_STATUS("hipInit", flags)
hipError_t hipRuntimeGetVersion(int *version) GIVES("hipRuntimeGetVersion", version, int, 0)
hipError_t hipGetDeviceCount(int *count) GIVES("hipGetDeviceCount", count, int, 0)
hipError_t hipGetDevice(int *device) GIVES("hipGetDevice", device, int, 0)
hipError_t hipSetDevice(int device) GIVES_STATUS("hipSetDevice", (uint64_t)device)
hipError_t hipDeviceGetName(char *name, int length, hipDevice_t device)
  GIVES_STATUS("hipDeviceGetName", WORD(name), (uint64_t)length, (uint64_t)device)
hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device)
  GIVES("hipDeviceGetAttribute", value, int, attribute, (uint64_t)device)
hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *properties, int device) {
  memset(properties, 0x5a, sizeof *properties);
  ASK("hipGetDevicePropertiesR0600", WORD(properties->gcnArchName), (uint64_t)device);
  return status;
}

hipError_t hipMalloc(void **pointer, size_t size) GIVES("hipMalloc", pointer, void *, size)
hipError_t hipFree(void *pointer) GIVES_STATUS("hipFree", WORD(pointer))
hipError_t hipHostMalloc(void **pointer, size_t size, unsigned int flags)
  GIVES("hipHostMalloc", pointer, void *, size, flags)
hipError_t hipHostFree(void *pointer) GIVES_STATUS("hipHostFree", WORD(pointer))
hipError_t hipHostGetDevicePointer(void **pointer, void *host, unsigned int flags)
  GIVES("hipHostGetDevicePointer", pointer, void *, WORD(host), flags)
hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, const void *from, size_t size, hipStream_t stream)
  GIVES_STATUS("hipMemcpyHtoDAsync", WORD(to), WORD(from), size, WORD(stream))
hipError_t hipMemcpyDtoHAsync(void *to, hipDeviceptr_t from, size_t size, hipStream_t stream)
  GIVES_STATUS("hipMemcpyDtoHAsync", WORD(to), WORD(from), size, WORD(stream))
hipError_t hipMemsetD8Async(hipDeviceptr_t to, unsigned char value, size_t count, hipStream_t stream)
  GIVES_STATUS("hipMemsetD8Async", WORD(to), value, count, WORD(stream))

hipError_t hipModuleLoadData(hipModule_t *module, const void *image)
  GIVES("hipModuleLoadData", module, hipModule_t, WORD(image))
hipError_t hipModuleUnload(hipModule_t module) GIVES_STATUS("hipModuleUnload", WORD(module))
hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name)
  GIVES("hipModuleGetFunction", function, hipFunction_t, WORD(module), WORD(name))
hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                                 hipStream_t stream, void **parameters, void **extra)
  GIVES_STATUS("hipModuleLaunchKernel", WORD(function), grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
               WORD(stream), WORD(parameters), WORD(extra))

hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned int flags)
  GIVES("hipStreamCreateWithFlags", stream, hipStream_t, flags)
hipError_t hipStreamDestroy(hipStream_t stream) GIVES_STATUS("hipStreamDestroy", WORD(stream))
hipError_t hipStreamSynchronize(hipStream_t stream) GIVES_STATUS("hipStreamSynchronize", WORD(stream))
hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned int flags)
  GIVES("hipEventCreateWithFlags", event, hipEvent_t, flags)
hipError_t hipEventDestroy(hipEvent_t event) GIVES_STATUS("hipEventDestroy", WORD(event))
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream)
  GIVES_STATUS("hipEventRecord", WORD(event), WORD(stream))
hipError_t hipEventSynchronize(hipEvent_t event) GIVES_STATUS("hipEventSynchronize", WORD(event))
hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop) {
  ASK("hipEventElapsedTime", WORD(start), WORD(stop));
  if (status == hipSuccess) *milliseconds = (float)written / 1000; /* of microseconds */
  return status;
}

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode)
  GIVES_STATUS("hipStreamBeginCapture", WORD(stream), mode)
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t *graph)
  GIVES("hipStreamEndCapture", graph, hipGraph_t, WORD(stream))
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t *ready, hipGraph_t graph, unsigned long long flags)
  GIVES("hipGraphInstantiateWithFlags", ready, hipGraphExec_t, WORD(graph), flags)
hipError_t hipGraphExecDestroy(hipGraphExec_t ready) GIVES_STATUS("hipGraphExecDestroy", WORD(ready))
hipError_t hipGraphDestroy(hipGraph_t graph) GIVES_STATUS("hipGraphDestroy", WORD(graph))
hipError_t hipGraphLaunch(hipGraphExec_t ready, hipStream_t stream)
  GIVES_STATUS("hipGraphLaunch", WORD(ready), WORD(stream))

#define NAME(value) case value: return #value;
const char *hipGetErrorName(hipError_t status) {
  switch (status) {
    NAME(hipErrorInvalidValue) NAME(hipErrorOutOfMemory) NAME(hipErrorNoDevice) NAME(hipErrorInvalidDevice)
    NAME(hipErrorInvalidImage) NAME(hipErrorInvalidContext) NAME(hipErrorNoBinaryForGpu)
    NAME(hipErrorInvalidKernelFile) NAME(hipErrorInvalidHandle) NAME(hipErrorNotFound) NAME(hipErrorNotReady)
    NAME(hipErrorIllegalAddress) NAME(hipErrorLaunchFailure) NAME(hipErrorNotInitialized)
    NAME(hipErrorStreamCaptureUnsupported)
    default: return "hipErrorUnknown";
  }
}
const char *hipGetErrorString(hipError_t status) { return text; }
