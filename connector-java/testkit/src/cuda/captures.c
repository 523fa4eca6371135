/*
 * What a capture of the default mode (GLOBAL) forbids to all threads of the process, as an H100 with driver 580.159 answered on
 * 26 November 2026 (`make gpu-check`, "driver calls beside a capture"): the call fails, and so does the end of the capture.
 */
#include "stand_in.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MODE_GLOBAL = 0, MODES = 3 };

static const char *const unsafe_calls[] = {
    "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemAlloc_v2", "cuMemFree_v2",
    "cuEventQuery", "cuEventSynchronize", "cuStreamQuery", "cuStreamSynchronize", "cuModuleUnload",
};
/* Forbidden in each mode of the calling thread. */
static const char *const never_allowed = "cuCtxSynchronize";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int open_captures;
/* Counts what has ended the captures that were open then. */
static uint64_t violations;
static __thread int mode_of_thread;
/* The thread has begun captures that it has not ended. */
static __thread int captures_of_thread;

static int is_unsafe(const char *name) {
    for (size_t i = 0; i < sizeof unsafe_calls / sizeof *unsafe_calls; i++) {
        if (strcmp(name, unsafe_calls[i]) == 0) {
            return mode_of_thread == MODE_GLOBAL;
        }
    }
    return strcmp(name, never_allowed) == 0;
}

CUresult beside_captures(const char *name) {
    if (!is_unsafe(name)) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    int forbidden = open_captures > 0;
    violations += forbidden;
    pthread_mutex_unlock(&lock);
    return forbidden ? refused(name, "no capture of the mode GLOBAL is open", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
                     : CUDA_SUCCESS;
}

void capture_begins(Capture *capture, int mode) {
    pthread_mutex_lock(&lock);
    *capture = (Capture){.is_global = mode == MODE_GLOBAL, .violations_before = violations};
    open_captures += capture->is_global;
    captures_of_thread++;
    pthread_mutex_unlock(&lock);
}

static int is_sound(const Capture *capture) {
    return !capture->is_global || violations == capture->violations_before;
}

int capture_is_sound(const Capture *capture) {
    pthread_mutex_lock(&lock);
    int sound = is_sound(capture);
    pthread_mutex_unlock(&lock);
    return sound;
}

int capture_ends(const Capture *capture) {
    pthread_mutex_lock(&lock);
    open_captures -= capture->is_global;
    captures_of_thread--;
    int sound = is_sound(capture);
    pthread_mutex_unlock(&lock);
    return sound;
}

EXPORTED CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    CALLED("%d", *mode);
    REQUIRE(*mode >= MODE_GLOBAL && *mode < MODES, CUDA_ERROR_INVALID_VALUE);
    int before = mode_of_thread;
    if (captures_of_thread > 0 || getenv("STAND_IN_DEFAULT_MODE") == NULL) {
        mode_of_thread = *mode;
    }
    *mode = before;
    return CUDA_SUCCESS;
}
