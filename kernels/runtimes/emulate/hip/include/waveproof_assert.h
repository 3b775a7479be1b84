#pragma once

#ifdef __cplusplus
extern "C"
#endif
    // Throws; what() has the condition and where it stands.
    __attribute__((visibility("default"), noreturn)) void
    waveproof_assertion_failed(const char* condition, const char* file, int line, const char* function);
