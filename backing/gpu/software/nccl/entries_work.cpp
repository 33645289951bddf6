// NCCL's entries that enqueue work: collectives, sends and receives, and the factors of reductions.
// Owns nothing. Locks: none.
#include <cstring>

#include "backing/gpu/software/nccl/group.h"

#define FIRN_NCCL_ENTRY extern "C" __attribute__((visibility("default")))

using namespace firn::nccl;

namespace {

struct Asked {
  Function function;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = 0;
};

ncclResult_t set_reduction(ncclComm_t comm, const Asked& asked, Work& work) {
  work.op = static_cast<uint8_t>(asked.op);
  if (asked.op >= ncclSum && asked.op < ncclNumOps) return ncclSuccess;
  const size_t index = static_cast<size_t>(asked.op) - ncclNumOps;
  if (asked.op < 0 || index >= comm->factors.size() || !comm->factors[index].used)
    return fail(ncclInvalidArgument, "no reduction %d", static_cast<int>(asked.op));
  const ncclComm::Factor& factor = comm->factors[index];
  if (factor.type != asked.type)
    return fail(ncclInvalidArgument, "a factor of data type %d for elements of %d",
                static_cast<int>(factor.type), static_cast<int>(asked.type));
  work.op = ncclNumOps;
  work.scalar_at = factor.at;
  std::memcpy(work.scalar, factor.value, sizeof work.scalar);
  return ncclSuccess;
}

ncclResult_t ask(ncclComm_t comm, CUstream stream, const Asked& asked) {
  if (comm == nullptr) return fail(ncclInvalidArgument, "no communicator");
  if (asked.type < 0 || asked.type >= ncclNumTypes)
    return fail(ncclInvalidArgument, "no data type %d", static_cast<int>(asked.type));
  if (asked.root < 0 || asked.root >= comm->shared->ranks())
    return fail(ncclInvalidArgument, "no rank %d of %d", asked.root, comm->shared->ranks());
  if (const int error = comm->signals.error.load(std::memory_order_acquire); error != ncclSuccess)
    return fail(static_cast<ncclResult_t>(error), "%s", comm->signals.words.c_str());
  if (asked.count == 0) return ncclSuccess;
  Work work{};
  work.function = asked.function;
  work.from = static_cast<const char*>(asked.from);
  work.to = static_cast<char*>(asked.to);
  work.count = asked.count;
  work.type = static_cast<uint8_t>(asked.type);
  work.root = asked.root;
  FIRN_NCCL_TRY(set_reduction(comm, asked, work));
  return enqueue(comm, stream, work);
}

}  // namespace

FIRN_NCCL_ENTRY ncclResult_t ncclAllReduce(const void* from, void* to, size_t count,
                                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                           CUstream stream) {
  return ask(comm, stream, {Function::all_reduce, from, to, count, type, op, 0});
}

FIRN_NCCL_ENTRY ncclResult_t ncclReduce(const void* from, void* to, size_t count,
                                        ncclDataType_t type, ncclRedOp_t op, int root,
                                        ncclComm_t comm, CUstream stream) {
  return ask(comm, stream, {Function::reduce, from, to, count, type, op, root});
}

FIRN_NCCL_ENTRY ncclResult_t ncclBroadcast(const void* from, void* to, size_t count,
                                           ncclDataType_t type, int root, ncclComm_t comm,
                                           CUstream stream) {
  return ask(comm, stream, {Function::broadcast, from, to, count, type, ncclSum, root});
}

FIRN_NCCL_ENTRY ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root,
                                       ncclComm_t comm, CUstream stream) {
  return ask(comm, stream, {Function::broadcast, buffer, buffer, count, type, ncclSum, root});
}

FIRN_NCCL_ENTRY ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count,
                                               ncclDataType_t type, ncclRedOp_t op,
                                               ncclComm_t comm, CUstream stream) {
  return ask(comm, stream, {Function::reduce_scatter, from, to, count, type, op, 0});
}

FIRN_NCCL_ENTRY ncclResult_t ncclAllGather(const void* from, void* to, size_t count,
                                           ncclDataType_t type, ncclComm_t comm,
                                           CUstream stream) {
  return ask(comm, stream, {Function::all_gather, from, to, count, type});
}

FIRN_NCCL_ENTRY ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count,
                                          ncclDataType_t type, ncclComm_t comm, CUstream stream) {
  return ask(comm, stream, {Function::all_to_all, from, to, count, type});
}

FIRN_NCCL_ENTRY ncclResult_t ncclGather(const void* from, void* to, size_t count,
                                        ncclDataType_t type, int root, ncclComm_t comm,
                                        CUstream stream) {
  return ask(comm, stream, {Function::gather, from, to, count, type, ncclSum, root});
}

FIRN_NCCL_ENTRY ncclResult_t ncclScatter(const void* from, void* to, size_t count,
                                         ncclDataType_t type, int root, ncclComm_t comm,
                                         CUstream stream) {
  return ask(comm, stream, {Function::scatter, from, to, count, type, ncclSum, root});
}

FIRN_NCCL_ENTRY ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type,
                                      int peer, ncclComm_t comm, CUstream stream) {
  return ask(comm, stream, {Function::send, from, nullptr, count, type, ncclSum, peer});
}

FIRN_NCCL_ENTRY ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer,
                                      ncclComm_t comm, CUstream stream) {
  return ask(comm, stream, {Function::receive, nullptr, to, count, type, ncclSum, peer});
}

FIRN_NCCL_ENTRY ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar,
                                                      ncclDataType_t type,
                                                      ncclScalarResidence_t residence,
                                                      ncclComm_t comm) {
  const size_t bytes = size_of(type);
  if (op == nullptr || scalar == nullptr || comm == nullptr || bytes == 0)
    return fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum without a factor");
  ncclComm::Factor factor{.used = true, .type = type, .value = {}, .at = nullptr};
  if (residence == ncclScalarDevice)
    factor.at = static_cast<const char*>(scalar);
  else
    std::memcpy(factor.value, scalar, bytes);
  size_t index = 0;
  while (index < comm->factors.size() && comm->factors[index].used) ++index;
  if (index == comm->factors.size()) comm->factors.push_back(factor);
  comm->factors[index] = factor;
  *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(index));
  return ncclSuccess;
}

FIRN_NCCL_ENTRY ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const size_t index = static_cast<size_t>(op) - ncclNumOps;
  if (comm == nullptr || op < ncclNumOps || index >= comm->factors.size() ||
      !comm->factors[index].used)
    return fail(ncclInvalidArgument, "no reduction %d", static_cast<int>(op));
  comm->factors[index].used = false;
  return ncclSuccess;
}
