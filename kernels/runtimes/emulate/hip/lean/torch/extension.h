// As much of torch/extension.h as AITER's bindings use: see all.h beside it.
#pragma once

#include <torch/all.h>
#include <torch/csrc/utils/pybind.h>
