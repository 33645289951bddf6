// Sticky errors: a context whose kernel failed answers that error from then on, to nearly every
// entry, until it is destroyed. Its queued work never runs.
//
// Owns: nothing; the error is the context's. Lock: Gpu::mutex, but for run_guarded().
#pragma once

#include <functional>

#include "gpu.h"

namespace firn::software {

/// Ends the context: its queued work is complete without having run, and waiters get the error. A
/// context that is dead already keeps its first error.
void kill_context(const std::shared_ptr<Context>& context, CUresult error);
/// All contexts of the process. (For tests: as if each had failed at once.)
void kill_contexts(CUresult error);

/// Does the entry answer a dead context's error? Those that ask for versions, devices, words or the
/// calling thread's contexts do not; nor do those whose documents lack "may also return error codes
/// from previous, asynchronous launches".
bool answers_sticky(const char* entry);

/// Runs a piece of work's body, without the lock. A fault, an assertion, an illegal instruction or
/// a trap in it ends the body and is the answer: 700, 710, 715 or 719; CUDA_SUCCESS when it ran to
/// its end. The body's own destructors do not run then, and a line says what happened. (A fault in
/// any other thread is the process's, as ever.)
CUresult run_guarded(const char* entry, const std::function<void()>& body);
/// From now on a process that dies of an access to GPU memory says why, on stderr.
void explain_faults();
/// The kernel that this thread is about to run, for that line. (A pointer that outlives the run.)
void name_running(const char* kernel);

}  // namespace firn::software
