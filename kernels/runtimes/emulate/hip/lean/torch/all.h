// As much of torch/all.h as AITER's host launchers use. The whole header costs 25 s and 1.4 GB of a compiler for each
// source, this part 5 s; a source that needs more does not compile with it and is compiled with torch's own instead.
#pragma once

#include <ATen/DeviceGuard.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

namespace torch {
using namespace at;
}  // namespace torch
