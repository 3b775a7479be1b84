// How the suite drives the HIP runtime of the emulated device: called from Python through ctypes, see hip_runtime.py.
// The structures are mirrored there field by field.
#pragma once

#include <cstddef>

extern "C" {

// Memory from hipMalloc that is not freed. Device addresses are host addresses.
struct WaveproofAllocation {
  const void* address;
  std::size_t bytes;
};

struct WaveproofLaunch {
  const char* path;  // of the code object; empty after hipModuleLoadData
  const void* image;
  std::size_t image_bytes;
  const char* kernel;
  unsigned int grid[3];   // workgroups
  unsigned int block[3];  // work-items
  unsigned int shared_bytes;
  const void* kernarg;
  std::size_t kernarg_bytes;
  const void* stream;
  const WaveproofAllocation* allocations;
  std::size_t allocation_count;
};

// Runs the kernel; anything but 0 fails the launch. What it points to lives until it returns.
typedef int (*WaveproofLauncher)(const WaveproofLaunch*);

struct WaveproofDevice {
  const char* name;
  const char* gcn_arch_name;
  int major;
  int minor;
  int compute_units;
  int warp_size;
  int most_work_items;
  std::size_t memory_bytes;
  std::size_t shared_bytes;
};

enum WaveproofFailure { kNoFailure = 0, kHipFailure = 1, kAssertion = 2 };

// Copies the description. Before the first call there is no device.
__attribute__((visibility("default"))) void waveproof_set_device(const WaveproofDevice* device);

// A null pointer takes the launcher away.
__attribute__((visibility("default"))) void waveproof_set_launcher(WaveproofLauncher launcher);

// Collects what is written to std::cout until waveproof_end_log, which returns it; valid until the next begin.
__attribute__((visibility("default"))) void waveproof_begin_log(void);
__attribute__((visibility("default"))) const char* waveproof_end_log(void);

// What this runtime last threw, and its kind (WaveproofFailure); `text` may be null. Clears it.
__attribute__((visibility("default"))) int waveproof_take_failure(char* text, std::size_t capacity);

}  // extern "C"
