// assert() for host sources under test. AITER compiles its launchers without NDEBUG (aiter/jit/core.py), so a failed
// assertion there aborts the process; here it throws, so that it can be told.
//
// No include guard, as the standard has it; <cassert> includes this file.
#include_next <assert.h>  // torch's headers call what glibc's declares beside the macro

#include "waveproof_assert.h"

#undef assert
#define assert(condition) \
  (static_cast<bool>(condition) ? void(0) : waveproof_assertion_failed(#condition, __FILE__, __LINE__, __func__))
