// Another address than dlsym's for cuGetProcAddress's answer, as a driver may have it: a veneer
// that jumps to the entry. [FIRN_GPU_VENEERS: base names with commas between them, or "all": always
// the same one; "each": a new one for each question]
#pragma once

namespace firn::software {

/// The entry itself where the setting does not name the symbol. Any thread, without a lock.
void* veneer_of(const char* symbol, void* entry);

}  // namespace firn::software
