// The part of the HIP runtime API that AITER's host sources call, for the emulated device of waveproof.
//
// Names, signatures and error values follow AMD's HIP runtime API reference
// (https://rocm.docs.amd.com/projects/HIP/en/latest/reference/hip_runtime_api_reference.html). What is not declared
// here does not exist: a host source that needs more fails to compile with the name of the function.
//
// One thing is different, on purpose. A function that fails throws (see waveproof_hip.h) where HIP returns an error:
// AITER's HIP_CALL ends the process with exit status 0 on an error (csrc/include/aiter_hip_common.h), and other callers
// drop the value, so that a returned error would pass for success either way.
#pragma once

#include <cstddef>
#include <cstdint>

typedef enum hipError_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorInvalidConfiguration = 9,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidImage = 200,
  hipErrorNoBinaryForGpu = 209,
  hipErrorFileNotFound = 301,
  hipErrorInvalidHandle = 400,
  hipErrorNotFound = 500,
  hipErrorLaunchFailure = 719,
  hipErrorNotSupported = 801,
} hipError_t;

typedef struct ihipModule_t* hipModule_t;
typedef struct ihipModuleSymbol_t* hipFunction_t;
typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;
typedef int hipDevice_t;

typedef enum hipMemcpyKind {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
} hipMemcpyKind;

// A subset of AMD's members. A host source that reads another one fails to compile.
typedef struct hipDeviceProp_t {
  char name[256];
  char gcnArchName[256];
  int major;
  int minor;
  int multiProcessorCount;
  int warpSize;
  int maxThreadsPerBlock;
  std::size_t totalGlobalMem;
  std::size_t sharedMemPerBlock;
} hipDeviceProp_t;

// The `extra` argument of hipModuleLaunchKernel is a list of these keys, each but the last with a value.
#define HIP_LAUNCH_PARAM_BUFFER_POINTER ((void*)0x01)
#define HIP_LAUNCH_PARAM_BUFFER_SIZE ((void*)0x02)
#define HIP_LAUNCH_PARAM_END ((void*)0x03)

#define WAVEPROOF_HIP __attribute__((visibility("default")))

extern "C" {

WAVEPROOF_HIP const char* hipGetErrorName(hipError_t error);
WAVEPROOF_HIP const char* hipGetErrorString(hipError_t error);
WAVEPROOF_HIP hipError_t hipGetLastError(void);
WAVEPROOF_HIP hipError_t hipPeekAtLastError(void);

WAVEPROOF_HIP hipError_t hipGetDeviceCount(int* count);
WAVEPROOF_HIP hipError_t hipGetDevice(int* device);
WAVEPROOF_HIP hipError_t hipSetDevice(int device);
WAVEPROOF_HIP hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device);
WAVEPROOF_HIP hipError_t hipDeviceSynchronize(void);

WAVEPROOF_HIP hipError_t hipMalloc(void** pointer, std::size_t size);
WAVEPROOF_HIP hipError_t hipFree(void* pointer);
WAVEPROOF_HIP hipError_t hipMemset(void* target, int value, std::size_t size);
WAVEPROOF_HIP hipError_t hipMemcpy(void* target, const void* source, std::size_t size, hipMemcpyKind kind);
WAVEPROOF_HIP hipError_t hipMemcpyAsync(void* target, const void* source, std::size_t size, hipMemcpyKind kind,
                                        hipStream_t stream);

WAVEPROOF_HIP hipError_t hipModuleLoad(hipModule_t* module, const char* path);
WAVEPROOF_HIP hipError_t hipModuleLoadData(hipModule_t* module, const void* image);
WAVEPROOF_HIP hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name);
WAVEPROOF_HIP hipError_t hipModuleUnload(hipModule_t module);
WAVEPROOF_HIP hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x, unsigned int grid_y,
                                               unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                               unsigned int block_z, unsigned int shared_bytes, hipStream_t stream,
                                               void** parameters, void** extra);

WAVEPROOF_HIP hipError_t hipStreamCreate(hipStream_t* stream);
WAVEPROOF_HIP hipError_t hipStreamDestroy(hipStream_t stream);
WAVEPROOF_HIP hipError_t hipStreamSynchronize(hipStream_t stream);
WAVEPROOF_HIP hipError_t hipEventCreate(hipEvent_t* event);
WAVEPROOF_HIP hipError_t hipEventDestroy(hipEvent_t event);
WAVEPROOF_HIP hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream = nullptr);
WAVEPROOF_HIP hipError_t hipEventSynchronize(hipEvent_t event);
WAVEPROOF_HIP hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop);

}  // extern "C"

template <class T>
inline hipError_t hipMalloc(T** pointer, std::size_t size) {
  return hipMalloc(reinterpret_cast<void**>(pointer), size);
}
