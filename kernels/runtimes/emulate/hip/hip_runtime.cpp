// A HIP runtime whose device is an emulator: kernels are handed to a launcher, synchronously, and device memory is host
// memory. Nothing here succeeds without having done what the API reference says.
#include <hip/hip_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "code_object.h"
#include "runtime_state.h"
#include "waveproof_hip.h"

using namespace waveproof;

namespace {

// A device allocation starts at a multiple of this, as hipMalloc's do.
constexpr std::size_t kAlignment = 256;

// Fresh memory holds this in every byte: as bf16 or float32 a value near -1.7e38, as a pointer one that is not canonical.
constexpr int kUninitialised = 0xfe;

hipModule_t add_module(const char* function, std::string path, std::string image) {
  const std::string name = path.empty() ? "the image" : path;
  auto module = std::unique_ptr<ihipModule_t>(new ihipModule_t{std::move(path), waveproof::CodeObject(std::move(image)), {}});
  const std::string defect = module->code.defect();
  if (!defect.empty()) fail(function, hipErrorInvalidImage, name + ": " + defect);
  if (module->code.machine() != state().machine) {
    std::ostringstream reason;
    reason << name << " is for EF_AMDGPU_MACH 0x" << std::hex << module->code.machine() << ", the device "
           << state().device.gcnArchName << " is 0x" << state().machine;
    fail(function, hipErrorNoBinaryForGpu, reason.str());
  }
  const hipModule_t handle = module.get();
  state().modules.emplace(handle, std::move(module));
  return handle;
}

struct Kernarg {
  const void* pointer = nullptr;
  std::size_t bytes = 0;
};

Kernarg read_extra(const char* function, void** extra) {
  Kernarg kernarg;
  const std::size_t* size = nullptr;
  for (void** entry = extra; *entry != HIP_LAUNCH_PARAM_END; entry += 2) {
    if (*entry == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
      kernarg.pointer = entry[1];
    } else if (*entry == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
      size = static_cast<const std::size_t*>(entry[1]);
    } else {
      fail(function, hipErrorInvalidValue, "unknown key in extra");
    }
  }
  require_pointer(function, kernarg.pointer, "HIP_LAUNCH_PARAM_BUFFER_POINTER");
  require_pointer(function, size, "HIP_LAUNCH_PARAM_BUFFER_SIZE");
  kernarg.bytes = *size;
  return kernarg;
}

}  // namespace

extern "C" {

const char* hipGetErrorName(hipError_t error) {
  switch (error) {
#define NAMED(name) case name: return #name
    NAMED(hipSuccess);
    NAMED(hipErrorInvalidValue);
    NAMED(hipErrorOutOfMemory);
    NAMED(hipErrorInvalidConfiguration);
    NAMED(hipErrorNoDevice);
    NAMED(hipErrorInvalidDevice);
    NAMED(hipErrorInvalidImage);
    NAMED(hipErrorNoBinaryForGpu);
    NAMED(hipErrorFileNotFound);
    NAMED(hipErrorInvalidHandle);
    NAMED(hipErrorNotFound);
    NAMED(hipErrorLaunchFailure);
    NAMED(hipErrorNotSupported);
#undef NAMED
  }
  return "hipErrorUnknown";
}

const char* hipGetErrorString(hipError_t error) {
  switch (error) {
    case hipSuccess: return "no error";
    case hipErrorInvalidValue: return "invalid argument";
    case hipErrorOutOfMemory: return "out of memory";
    case hipErrorInvalidConfiguration: return "invalid configuration argument";
    case hipErrorNoDevice: return "no ROCm-capable device is detected";
    case hipErrorInvalidDevice: return "invalid device ordinal";
    case hipErrorInvalidImage: return "device kernel image is invalid";
    case hipErrorNoBinaryForGpu: return "no kernel image is available for execution on the device";
    case hipErrorFileNotFound: return "file not found";
    case hipErrorInvalidHandle: return "invalid resource handle";
    case hipErrorNotFound: return "named symbol not found";
    case hipErrorLaunchFailure: return "unspecified launch failure";
    case hipErrorNotSupported: return "operation not supported";
  }
  return "unknown error";
}

hipError_t hipGetLastError(void) {
  const hipError_t error = state().last_error;
  state().last_error = hipSuccess;
  return error;
}

hipError_t hipPeekAtLastError(void) { return state().last_error; }

hipError_t hipGetDeviceCount(int* count) {
  require_pointer("hipGetDeviceCount", count, "count");
  require_device("hipGetDeviceCount");
  *count = 1;
  return hipSuccess;
}

hipError_t hipGetDevice(int* device) {
  require_pointer("hipGetDevice", device, "device");
  require_device("hipGetDevice");
  *device = 0;
  return hipSuccess;
}

hipError_t hipSetDevice(int device) {
  require_device("hipSetDevice");
  if (device != 0) fail("hipSetDevice", hipErrorInvalidDevice, "device " + std::to_string(device) + " of 1");
  return hipSuccess;
}

hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device) {
  require_pointer("hipGetDeviceProperties", properties, "properties");
  require_device("hipGetDeviceProperties");
  if (device != 0) fail("hipGetDeviceProperties", hipErrorInvalidDevice, "device " + std::to_string(device) + " of 1");
  *properties = state().device;
  return hipSuccess;
}

// Launches and copies are complete when their call returns, so that there is never anything to wait for.
hipError_t hipDeviceSynchronize(void) {
  require_device("hipDeviceSynchronize");
  return hipSuccess;
}

hipError_t hipMalloc(void** pointer, std::size_t size) {
  require_pointer("hipMalloc", pointer, "pointer");
  require_device("hipMalloc");
  *pointer = nullptr;
  if (size == 0) return hipSuccess;  // as the API reference has it
  if (size > state().device.totalGlobalMem)
    fail("hipMalloc", hipErrorOutOfMemory, std::to_string(size) + " bytes of " + std::to_string(state().device.totalGlobalMem));
  void* memory = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  if (!memory) fail("hipMalloc", hipErrorOutOfMemory, std::to_string(size) + " bytes");
  std::memset(memory, kUninitialised, size);
  state().allocations.emplace(static_cast<const char*>(memory), size);
  *pointer = memory;
  return hipSuccess;
}

hipError_t hipFree(void* pointer) {
  require_device("hipFree");
  if (!pointer) return hipSuccess;  // as the API reference has it
  if (!state().allocations.erase(static_cast<const char*>(pointer)))
    fail("hipFree", hipErrorInvalidValue, "the pointer is not from hipMalloc, or was freed before");
  std::free(pointer);
  return hipSuccess;
}

hipError_t hipMemset(void* target, int value, std::size_t size) {
  require_device("hipMemset");
  if (size == 0) return hipSuccess;
  require_range("hipMemset", target, size, "target");
  std::memset(target, value, size);
  return hipSuccess;
}

static hipError_t copy(const char* function, void* target, const void* source, std::size_t size, hipMemcpyKind kind) {
  require_device(function);
  if (kind < hipMemcpyHostToHost || kind > hipMemcpyDefault) fail(function, hipErrorInvalidValue, "unknown hipMemcpyKind");
  if (size == 0) return hipSuccess;
  require_range(function, target, size, "target");
  require_range(function, source, size, "source");
  std::memmove(target, source, size);
  return hipSuccess;
}

hipError_t hipMemcpy(void* target, const void* source, std::size_t size, hipMemcpyKind kind) {
  return copy("hipMemcpy", target, source, size, kind);
}

hipError_t hipMemcpyAsync(void* target, const void* source, std::size_t size, hipMemcpyKind kind, hipStream_t stream) {
  require_stream("hipMemcpyAsync", stream);
  return copy("hipMemcpyAsync", target, source, size, kind);
}

hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  require_pointer("hipModuleLoad", module, "module");
  require_pointer("hipModuleLoad", path, "path");
  require_device("hipModuleLoad");
  std::ifstream file(path, std::ios::binary);
  std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) fail("hipModuleLoad", hipErrorFileNotFound, path);
  *module = add_module("hipModuleLoad", path, std::move(image));
  return hipSuccess;
}

hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  require_pointer("hipModuleLoadData", module, "module");
  require_pointer("hipModuleLoadData", image, "image");
  require_device("hipModuleLoadData");
  const auto bytes = waveproof::CodeObject::extent(image);
  if (!bytes) fail("hipModuleLoadData", hipErrorInvalidImage, "the image is not an ELF file of 64 bits");
  *module = add_module("hipModuleLoadData", "", std::string(static_cast<const char*>(image), *bytes));
  return hipSuccess;
}

hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name) {
  require_pointer("hipModuleGetFunction", function, "function");
  require_pointer("hipModuleGetFunction", name, "name");
  auto found = state().modules.find(module);
  if (found == state().modules.end()) fail("hipModuleGetFunction", hipErrorInvalidHandle, "not a module of this runtime");
  if (!module->code.has_kernel(name))
    fail("hipModuleGetFunction", hipErrorNotFound, std::string("no kernel ") + name + " in " + module->path);
  auto& entry = module->functions[name];
  if (!entry) entry.reset(new ihipModuleSymbol_t{module, name});
  state().functions.insert(entry.get());
  *function = entry.get();
  return hipSuccess;
}

hipError_t hipModuleUnload(hipModule_t module) {
  auto found = state().modules.find(module);
  if (found == state().modules.end()) fail("hipModuleUnload", hipErrorInvalidHandle, "not a module of this runtime");
  for (const auto& [name, function] : module->functions) state().functions.erase(function.get());
  state().modules.erase(found);
  return hipSuccess;
}

hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                 unsigned int shared_bytes, hipStream_t stream, void** parameters, void** extra) {
  const char* const here = "hipModuleLaunchKernel";
  State& s = state();
  require_device(here);
  if (!s.functions.count(function)) fail(here, hipErrorInvalidHandle, "not a function of this runtime");
  require_stream(here, stream);
  // Negative int dimensions of a caller arrive as huge ones and have to fail as well.
  for (const unsigned extent : {grid_x, grid_y, grid_z, block_x, block_y, block_z})
    if (extent == 0 || extent > 0x7fffffffu)
      fail(here, hipErrorInvalidConfiguration, "a dimension of " + std::to_string(static_cast<int>(extent)) + " in grid " +
           std::to_string(static_cast<int>(grid_x)) + " x " + std::to_string(static_cast<int>(grid_y)) + " x " +
           std::to_string(static_cast<int>(grid_z)));
  const std::uint64_t work_items = std::uint64_t{block_x} * block_y * block_z;
  if (work_items > static_cast<std::uint64_t>(s.device.maxThreadsPerBlock))
    fail(here, hipErrorInvalidConfiguration, std::to_string(work_items) + " work-items in a workgroup");
  if (shared_bytes > s.device.sharedMemPerBlock)
    fail(here, hipErrorInvalidConfiguration, std::to_string(shared_bytes) + " bytes of LDS");
  if (parameters || !extra)
    fail(here, hipErrorNotSupported, "arguments come through HIP_LAUNCH_PARAM_BUFFER_POINTER only");
  const Kernarg kernarg = read_extra(here, extra);
  if (!s.launcher) fail(here, hipErrorLaunchFailure, "no launcher has been set");
  std::vector<WaveproofAllocation> allocations;
  for (const auto& [address, bytes] : s.allocations) allocations.push_back({address, bytes});
  const ihipModule_t& module = *function->module;
  const WaveproofLaunch launch{module.path.c_str(),
                               module.code.image().data(),
                               module.code.image().size(),
                               function->name.c_str(),
                               {grid_x, grid_y, grid_z},
                               {block_x, block_y, block_z},
                               shared_bytes,
                               kernarg.pointer,
                               kernarg.bytes,
                               stream,
                               allocations.data(),
                               allocations.size()};
  if (const int status = s.launcher(&launch))
    fail(here, hipErrorLaunchFailure, "the launcher answered " + std::to_string(status) + " for " + function->name);
  return hipSuccess;
}

hipError_t hipStreamCreate(hipStream_t* stream) {
  require_pointer("hipStreamCreate", stream, "stream");
  require_device("hipStreamCreate");
  auto created = std::make_unique<ihipStream_t>();
  *stream = created.get();
  state().streams.emplace(*stream, std::move(created));
  return hipSuccess;
}

hipError_t hipStreamDestroy(hipStream_t stream) {
  if (!state().streams.erase(stream)) fail("hipStreamDestroy", hipErrorInvalidHandle, "not a stream of this runtime");
  return hipSuccess;
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
  require_stream("hipStreamSynchronize", stream);
  return hipSuccess;
}

hipError_t hipEventCreate(hipEvent_t* event) {
  require_pointer("hipEventCreate", event, "event");
  require_device("hipEventCreate");
  auto created = std::make_unique<ihipEvent_t>();
  *event = created.get();
  state().events.emplace(*event, std::move(created));
  return hipSuccess;
}

hipError_t hipEventDestroy(hipEvent_t event) {
  require_event("hipEventDestroy", event);
  state().events.erase(event);
  return hipSuccess;
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  require_stream("hipEventRecord", stream);
  require_event("hipEventRecord", event).recorded = true;
  return hipSuccess;
}

hipError_t hipEventSynchronize(hipEvent_t event) {
  require_event("hipEventSynchronize", event);
  return hipSuccess;
}

hipError_t hipEventElapsedTime(float*, hipEvent_t, hipEvent_t) {
  fail("hipEventElapsedTime", hipErrorNotSupported, "the emulated device has no clock");
}

}  // extern "C"
