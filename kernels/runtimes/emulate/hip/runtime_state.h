// What the parts of the runtime share: its state, and how a call fails.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include "code_object.h"
#include "waveproof_hip.h"

struct ihipModuleSymbol_t {
  hipModule_t module;
  std::string name;
};

struct ihipModule_t {
  std::string path;
  waveproof::CodeObject code;
  std::map<std::string, std::unique_ptr<ihipModuleSymbol_t>> functions;
};

struct ihipStream_t {};

struct ihipEvent_t {
  bool recorded = false;
};

namespace waveproof {

struct State {
  bool has_device = false;
  hipDeviceProp_t device{};
  unsigned machine = 0;
  WaveproofLauncher launcher = nullptr;
  hipError_t last_error = hipSuccess;
  WaveproofFailure failure = kNoFailure;
  std::string failure_text;
  std::ostringstream log;
  std::streambuf* console = nullptr;
  std::string finished_log;
  std::map<const char*, std::size_t> allocations;
  std::map<hipModule_t, std::unique_ptr<ihipModule_t>> modules;
  std::set<hipFunction_t> functions;
  std::map<hipStream_t, std::unique_ptr<ihipStream_t>> streams;
  std::map<hipEvent_t, std::unique_ptr<ihipEvent_t>> events;
};

// Never destroyed: AITER's static kernels unload their modules while the process ends.
inline State& state() {
  static State* const only = new State;
  return *only;
}

[[noreturn]] inline void fail(const char* function, hipError_t error, const std::string& reason) {
  State& s = state();
  s.last_error = error;
  s.failure = kHipFailure;
  s.failure_text = std::string(function) + ": " + hipGetErrorName(error) + ": " + reason;
  throw std::runtime_error(s.failure_text);
}

inline void require_device(const char* function) {
  if (!state().has_device) fail(function, hipErrorNoDevice, "no emulated device has been set");
}

inline void require_pointer(const char* function, const void* pointer, const char* what) {
  if (!pointer) fail(function, hipErrorInvalidValue, std::string(what) + " is a null pointer");
}

// Memory that is not from hipMalloc belongs to torch or to the host program and cannot be checked here.
inline void require_range(const char* function, const void* pointer, std::size_t size, const char* what) {
  require_pointer(function, pointer, what);
  const auto& allocations = state().allocations;
  const char* start = static_cast<const char*>(pointer);
  auto after = allocations.upper_bound(start);
  if (after == allocations.begin()) return;
  const auto [base, bytes] = *std::prev(after);
  if (start < base + bytes && size > static_cast<std::size_t>(base + bytes - start))
    fail(function, hipErrorInvalidValue,
         std::to_string(size) + " bytes of the " + what + " from byte " + std::to_string(start - base) +
             " of an allocation of " + std::to_string(bytes));
}

inline void require_stream(const char* function, hipStream_t stream) {
  if (stream && !state().streams.count(stream)) fail(function, hipErrorInvalidHandle, "not a stream of this runtime");
}

inline ihipEvent_t& require_event(const char* function, hipEvent_t event) {
  auto found = state().events.find(event);
  if (found == state().events.end()) fail(function, hipErrorInvalidHandle, "not an event of this runtime");
  return *found->second;
}

}  // namespace waveproof
