// Stands for torch's guard that makes the device of a tensor the current one. There is one emulated device, and it
// takes its tensors from the memory of the CPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <optional>

namespace at::hip {
class OptionalHIPGuardMasqueradingAsCUDA {
 public:
  explicit OptionalHIPGuardMasqueradingAsCUDA(std::optional<c10::Device> device) {
    TORCH_CHECK_VALUE(!device || device->is_cpu(), "the emulated device takes tensors on the CPU, not on ", *device);
  }
};
}  // namespace at::hip
