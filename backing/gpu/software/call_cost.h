// The time that calls of memory management take on a real driver, on the wall clock: per handle and
// not per byte, one call at a time in the whole process; giving access waits for copies to the host.
//
// Owns: the scale, set at cuInit, and the lock that stands for the resource manager's.
#pragma once

#include <cstdint>
#include <string>

#include "firn/cuda_abi.h"

namespace firn::software {

class Gate;

enum class Call { create, release, map, access, unmap, host_register };

/// [FIRN_GPU_CALL_COST=scale or scale+us] An A100's published figures times `scale`: 1 for a GPU as
/// fast as that, more where kernels are slower. `us`, before the scale: how long giving access to a
/// handle waits, at most, until no copy to the host is under way. Nothing by default. Returns
/// empty, or what was wrong.
std::string read_call_cost();

/// Takes the time of calls for `handles` of them; for create and host_register also by bytes. Lets
/// go of the GPU's lock meanwhile. Does nothing on the virtual clock.
void charge(Gate& gate, Call call, uint64_t handles, uint64_t bytes = 0);

}  // namespace firn::software
