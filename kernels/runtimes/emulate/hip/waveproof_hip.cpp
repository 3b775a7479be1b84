// The side of the runtime that the suite drives: the device, the launcher, what the host code prints and how it failed.
#include "waveproof_hip.h"

#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>

#include "runtime_state.h"
#include "waveproof_assert.h"

using namespace waveproof;

namespace {

// EF_AMDGPU_MACH_AMDGCN_*: "AMDGPU ELF Header e_flags" in LLVM's User Guide for AMDGPU Backend.
unsigned machine_of(const std::string& arch) {
  if (arch == "gfx942") return 0x4c;
  if (arch == "gfx950") return 0x4f;
  return 0;
}

}  // namespace

extern "C" {

void waveproof_assertion_failed(const char* condition, const char* file, int line, const char* function) {
  State& s = state();
  s.failure = kAssertion;
  const char* const slash = std::strrchr(file, '/');  // where AITER is installed is nobody's business in a report
  s.failure_text = std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) + ": " + function + ": Assertion `" + condition + "' failed.";
  throw std::logic_error(s.failure_text);
}

void waveproof_set_device(const WaveproofDevice* device) {
  State& s = state();
  hipDeviceProp_t properties{};
  std::strncpy(properties.name, device->name, sizeof properties.name - 1);
  std::strncpy(properties.gcnArchName, device->gcn_arch_name, sizeof properties.gcnArchName - 1);
  properties.major = device->major;
  properties.minor = device->minor;
  properties.multiProcessorCount = device->compute_units;
  properties.warpSize = device->warp_size;
  properties.maxThreadsPerBlock = device->most_work_items;
  properties.totalGlobalMem = device->memory_bytes;
  properties.sharedMemPerBlock = device->shared_bytes;
  const std::string arch = properties.gcnArchName;
  s.device = properties;
  s.machine = machine_of(arch.substr(0, arch.find(':')));
  s.has_device = true;
}

void waveproof_set_launcher(WaveproofLauncher launcher) { state().launcher = launcher; }

void waveproof_begin_log(void) {
  State& s = state();
  s.log.str("");
  if (!s.console) s.console = std::cout.rdbuf(s.log.rdbuf());
}

const char* waveproof_end_log(void) {
  State& s = state();
  if (s.console) std::cout.rdbuf(s.console);
  s.console = nullptr;
  s.finished_log = s.log.str();
  return s.finished_log.c_str();
}

int waveproof_take_failure(char* text, std::size_t capacity) {
  State& s = state();
  const WaveproofFailure failure = s.failure;
  if (text && capacity) {
    std::strncpy(text, s.failure_text.c_str(), capacity - 1);
    text[capacity - 1] = '\0';
  }
  s.failure = kNoFailure;
  s.failure_text.clear();
  return failure;
}

}  // extern "C"
