// What AITER's host launchers take from torch's HIP build: the current stream, here the default one of the device.
#pragma once

#include <hip/hip_runtime.h>

namespace at::hip {
inline hipStream_t getCurrentHIPStream() { return nullptr; }
}  // namespace at::hip
