// Streams that wait for values in memory, or write them: the memory stays on the device, since a
// wait may go on while the block is away. Values to write are known when the call is made, within a
// capture, too.
#include "allocator/preload/copies.h"
#include "allocator/preload/handlers.h"

namespace firn::preload {

namespace {
// CUstreamBatchMemOpType.
enum : unsigned { wait_32 = 1, write_32 = 2, wait_64 = 4, write_64 = 5 };

template <class Call>
CUresult semaphores(CUstream stream, const CUstreamBatchMemOpParams* operations, unsigned count,
                    Call&& call) {
  if (views().count() == 0) return call();
  const Enqueues enqueues(stream);
  stay_for(operations, count);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) tell_tables(operations, count);
  return result;
}

template <class Call>
CUresult semaphore(CUstream stream, unsigned operation, CUdeviceptr address, uint64_t value,
                   Call&& call) {
  CUstreamBatchMemOpParams one{};
  one.operation = operation;
  one.address = address;
  one.value = value;
  return semaphores(stream, &one, 1, call);
}
}  // namespace

// No operation has more words than these; some of them are addresses.
void stay_for(const CUstreamBatchMemOpParams* operations, unsigned count) {
  for (unsigned i = 0; operations && i < count; ++i)
    for (uint64_t word : {uint64_t{operations[i].address}, operations[i].value,
                          uint64_t{operations[i].alias}})
      if (View* view = views().at(word))
        (void)view->engine->give_address(reinterpret_cast<void*>(word),
                                         "a stream waits for or writes a value there");
}

void tell_tables(const CUstreamBatchMemOpParams* operations, unsigned count) {
  for (unsigned i = 0; operations && i < count; ++i)
    if (operations[i].operation == write_64)
      (void)tables().write(operations[i].address, &operations[i].value, sizeof(uint64_t), true);
}

#define SEMAPHORE(entry, bits, operation)                                                      \
  CUresult entry(CUstream stream, CUdeviceptr address, uint##bits##_t value, unsigned flags) { \
    return semaphore(stream, operation, address, value,                                        \
                     [&] { return real().entry(stream, address, value, flags); });             \
  }
#define SEMAPHORES(entry)                                                                      \
  CUresult entry(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,        \
                 unsigned flags) {                                                             \
    return semaphores(stream, operations, count,                                               \
                      [&] { return real().entry(stream, count, operations, flags); });         \
  }
#define EACH_VERSION(kind, entry, ...)                                                         \
  kind(entry __VA_OPT__(,) __VA_ARGS__)                                                        \
  kind(entry##_ptsz __VA_OPT__(,) __VA_ARGS__)                                                 \
  kind(entry##_v2 __VA_OPT__(,) __VA_ARGS__)                                                   \
  kind(entry##_v2_ptsz __VA_OPT__(,) __VA_ARGS__)
EACH_VERSION(SEMAPHORE, cuStreamWaitValue32, 32, wait_32)
EACH_VERSION(SEMAPHORE, cuStreamWaitValue64, 64, wait_64)
EACH_VERSION(SEMAPHORE, cuStreamWriteValue32, 32, write_32)
EACH_VERSION(SEMAPHORE, cuStreamWriteValue64, 64, write_64)
EACH_VERSION(SEMAPHORES, cuStreamBatchMemOp)

}  // namespace firn::preload
