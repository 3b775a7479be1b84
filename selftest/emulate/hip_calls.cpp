// Run by test_hip_runtime.py: host code that uses the HIP runtime of the emulated device in right and in wrong ways.
// Prints a line for each: what it expects of, and what came. Arguments: a code object for gfx950, one of its kernels, and
// a code object for gfx942.
#include <hip/hip_runtime.h>

#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "waveproof_hip.h"

namespace {

void said(const char* what, const std::function<void()>& call) {
  try {
    call();
    std::cout << what << ": done\n";
  } catch (const std::exception& error) {
    std::cout << what << ": " << error.what() << "\n";
  }
}

int seen_allocations = -1;
std::string seen;

int launcher(const WaveproofLaunch* launch) {
  seen = std::string(launch->kernel) + " " + std::to_string(launch->grid[0]) + " " + std::to_string(launch->block[0]) + " " +
         std::to_string(launch->shared_bytes) + " " +
         std::string(static_cast<const char*>(launch->kernarg), launch->kernarg_bytes);
  seen_allocations = static_cast<int>(launch->allocation_count);
  return launch->grid[1] == 7 ? 5 : 0;
}

}  // namespace

int main(int, char** argv) {
  int number = -1;
  hipDeviceProp_t properties;
  said("no device yet", [&] { hipGetDeviceCount(&number); });
  const WaveproofDevice device{"Emulated", "gfx950:sramecc+:xnack-", 9, 5, 256, 64, 1024, 1 << 30, 160 << 10};
  waveproof_set_device(&device);
  said("count", [&] { hipGetDeviceCount(&number); hipSetDevice(0); hipDeviceSynchronize(); });
  said("second device", [&] { hipSetDevice(1); });
  said("properties of a second device", [&] { hipGetDeviceProperties(&properties, 1); });
  hipGetDeviceProperties(&properties, 0);
  std::cout << "properties: " << properties.name << " " << properties.gcnArchName << " " << properties.multiProcessorCount
            << " " << properties.warpSize << " " << properties.sharedMemPerBlock << " " << number << "\n";
  std::cout << "error: " << hipGetErrorName(hipPeekAtLastError()) << ", " << hipGetErrorString(hipGetLastError())
            << ", then " << hipGetErrorString(hipGetLastError()) << "\n";

  char* memory = nullptr;
  char host[100];
  for (int i = 0; i < 100; ++i) host[i] = static_cast<char>(i);
  hipMalloc(&memory, 100);
  std::cout << "fresh memory: " << (static_cast<unsigned char>(memory[0]) == 0xfe && static_cast<unsigned char>(memory[99]) == 0xfe)
            << (reinterpret_cast<std::uintptr_t>(memory) % 256 == 0) << "\n";
  hipMemcpy(memory, host, 100, hipMemcpyHostToDevice);
  hipMemset(memory, 7, 10);
  std::cout << "copied: " << int(memory[99]) << " " << int(memory[9]) << " " << int(memory[10]) << "\n";
  said("copy over the end", [&] { hipMemcpy(memory + 10, host, 91, hipMemcpyHostToDevice); });
  said("copy from over the end", [&] { hipMemcpyAsync(host, memory + 99, 2, hipMemcpyDeviceToHost, nullptr); });
  said("set over the end", [&] { hipMemset(memory, 0, 101); });
  said("copy to null", [&] { hipMemcpy(nullptr, host, 1, hipMemcpyHostToDevice); });
  said("copy of no kind", [&] { hipMemcpy(memory, host, 1, static_cast<hipMemcpyKind>(9)); });
  said("too much memory", [&] { void* pointer; hipMalloc(&pointer, std::size_t{2} << 30); });
  said("free of something else", [&] { hipFree(memory + 1); });

  hipModule_t module, other;
  hipFunction_t function;
  said("file that is not there", [&] { hipModuleLoad(&module, "no.co"); });
  said("file that is no code", [&] { hipModuleLoad(&module, argv[0]); });
  said("code for another device", [&] { hipModuleLoad(&module, argv[3]); });
  said("load", [&] { hipModuleLoad(&module, argv[1]); });
  said("kernel that is not there", [&] { hipModuleGetFunction(&function, module, "nothing"); });
  said("function", [&] { hipModuleGetFunction(&function, module, argv[2]); });
  std::ifstream file(argv[1], std::ios::binary);
  std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  said("load from memory", [&] { hipModuleLoadData(&other, image.data()); hipModuleUnload(other); });
  said("load nothing from memory", [&] { hipModuleLoadData(&other, "no image at all"); });
  {
    std::ofstream cut("cut.co", std::ios::binary);
    cut.write(image.data(), static_cast<std::streamsize>(image.size() / 2));
  }
  said("half a file", [&] { hipModuleLoad(&other, "cut.co"); });

  std::string arguments = "arguments";
  std::size_t size = arguments.size();
  void* extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, arguments.data(), HIP_LAUNCH_PARAM_BUFFER_SIZE, &size, HIP_LAUNCH_PARAM_END};
  void* odd[] = {(void*)0x17, nullptr, HIP_LAUNCH_PARAM_END};
  void* none[] = {HIP_LAUNCH_PARAM_END};
  auto launch = [&](unsigned grid, unsigned second, unsigned block, unsigned shared, void** parameters, void** list) {
    hipModuleLaunchKernel(function, grid, second, 1, block, 1, 1, shared, nullptr, parameters, list);
  };
  said("no launcher", [&] { launch(2, 1, 256, 0, nullptr, extra); });
  waveproof_set_launcher(launcher);
  said("launch", [&] { launch(2, 1, 256, 48, nullptr, extra); });
  std::cout << "seen: " << seen << ", allocations " << seen_allocations << "\n";
  said("launcher that fails", [&] { launch(2, 7, 256, 0, nullptr, extra); });
  said("empty grid", [&] { launch(0, 1, 256, 0, nullptr, extra); });
  said("negative grid", [&] { launch(static_cast<unsigned>(-1), 1, 256, 0, nullptr, extra); });
  said("large workgroup", [&] { launch(1, 1, 1025, 0, nullptr, extra); });
  said("much LDS", [&] { launch(1, 1, 64, (160 << 10) + 1, nullptr, extra); });
  said("parameters one by one", [&] { launch(1, 1, 64, 0, extra, nullptr); });
  said("no arguments", [&] { launch(1, 1, 64, 0, nullptr, nullptr); });
  said("unknown key", [&] { launch(1, 1, 64, 0, nullptr, odd); });
  said("arguments without address", [&] { launch(1, 1, 64, 0, nullptr, none); });

  hipStream_t stream;
  hipEvent_t event;
  float time;
  said("stream", [&] { hipStreamCreate(&stream); hipStreamSynchronize(stream); hipStreamSynchronize(nullptr); });
  said("launch on the stream", [&] { hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, nullptr, extra); });
  said("event", [&] { hipEventCreate(&event); hipEventRecord(event, stream); hipEventSynchronize(event); });
  said("time", [&] { hipEventElapsedTime(&time, event, event); });
  said("end of event and stream", [&] { hipEventDestroy(event); hipStreamDestroy(stream); });
  said("event after its end", [&] { hipEventRecord(event); });
  said("launch on a stream after its end", [&] { hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, stream, nullptr, extra); });
  said("free", [&] { hipFree(memory); hipFree(nullptr); });
  said("free again", [&] { hipFree(memory); });
  said("unload", [&] { hipModuleUnload(module); });
  said("launch after unloading", [&] { launch(1, 1, 64, 0, nullptr, extra); });
  said("unload again", [&] { hipModuleUnload(module); });
  char text[256];
  const int kind = waveproof_take_failure(text, sizeof text);
  std::cout << "failure: " << kind << " " << text << ", then " << waveproof_take_failure(nullptr, 0) << "\n";
}
