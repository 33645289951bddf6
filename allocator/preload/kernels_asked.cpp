// Kernels that a program looks up: a program that does and of which no launch arrives launches past
// Firn, which the coverage report says (coverage.cpp). The calls themselves pass.
#include "allocator/preload/handlers.h"

namespace firn::preload {

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return real().cuModuleGetFunction(function, module, name);
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return real().cuLibraryGetKernel(kernel, library, name);
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return real().cuKernelGetFunction(function, kernel);
}

}  // namespace firn::preload
