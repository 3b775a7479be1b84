// Included by AITER's aiter_hip_common.h. Its host launchers take nothing of Composable Kernel from it, only the standard
// headers that it brings along.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
