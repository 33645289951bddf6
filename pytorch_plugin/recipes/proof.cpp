#include "pytorch_plugin/recipes/proof.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "firn/said.h"
#include "pytorch_plugin/observer.h"
#include "pytorch_plugin/recipes/make_again.h"
#include "pytorch_plugin/recipes/relaxed_capture.h"

namespace firn::pytorch {

namespace {

using Bytes = std::unique_ptr<std::byte[]>;

/// Behind the stream's work. (Launches of ours are none of the program's, and another thread's
/// capture goes on although this one waits.)
bool copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, CUstream stream) {
  ObservedScope scope(making_again);
  const RelaxedCapture relaxed;
  if (cudaMemcpyAsync(to, from, bytes, kind, stream) == cudaSuccess &&
      cudaStreamSynchronize(stream) == cudaSuccess)
    return true;
  (void)cudaGetLastError();
  return false;
}

Bytes copy_out(const TensorName& result, CUstream stream) {
  Bytes bytes(new (std::nothrow) std::byte[result.storage_bytes]);
  if (bytes && !copy(bytes.get(), result.base, result.storage_bytes, cudaMemcpyDeviceToHost, stream))
    bytes.reset();
  return bytes;
}

void name_once(const Recipe& recipe) {
  if (recipe.made_by->differs.exchange(true)) return;
  say("firn: " + toString(recipe.made_by->op.operator_name()) +
      " made other bytes from the same inputs when it ran again: nothing that it makes is made again "
      "from now on, and its results move instead");
}

}  // namespace

std::unique_ptr<Proof> Proof::of(const Recipe& recipe, size_t result_at, CUstream stream) {
  const c10::cuda::CUDAGuard device(recipe.device);
  Bytes bytes = copy_out(recipe.result(result_at), stream);
  if (!bytes) return nullptr;
  return std::unique_ptr<Proof>(new Proof(std::move(bytes), recipe.result(result_at).storage_bytes));
}

bool Proof::put_back(const Recipe& recipe, size_t result_at, CUstream stream) const {
  const c10::cuda::CUDAGuard device(recipe.device);
  void* const base = const_cast<void*>(recipe.result(result_at).base);
  return copy(base, bytes_.get(), count_, cudaMemcpyHostToDevice, stream);
}

Proof::Found Proof::confirm(const Recipe& recipe, size_t result_at, CUstream stream) const {
  const c10::cuda::CUDAGuard device(recipe.device);
  const Bytes made = copy_out(recipe.result(result_at), stream);
  if (made && std::memcmp(made.get(), bytes_.get(), count_) == 0) return Found::equal;
  if (made) name_once(recipe);
  return put_back(recipe, result_at, stream) ? Found::put_back : Found::unknown;
}

bool prove(const Recipe& recipe, size_t result_at) {
  const CUstream stream = c10::cuda::getCurrentCUDAStream(recipe.device).stream();
  const std::unique_ptr<Proof> proof = Proof::of(recipe, result_at, stream);
  if (!proof) return false;
  const std::string error = run_again(recipe, result_at, stream);
  Proof::Found found = Proof::Found::put_back;
  if (error.empty())
    found = proof->confirm(recipe, result_at, stream);
  else if (!proof->put_back(recipe, result_at, stream))
    found = Proof::Found::unknown;
  TORCH_CHECK(found != Proof::Found::unknown, "firn: ",
              toString(recipe.made_by->op.operator_name()), " ran again to be compared (", error,
              "), and its result could not be copied back; firn_remake:0 leaves that out");
  return found == Proof::Found::equal;
}

}  // namespace firn::pytorch
