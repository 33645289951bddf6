// What a call of the dispatcher takes, with nobody watching, with a callback that does nothing, and
// with Firn's observer. Part of the library that call_times.py loads.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <chrono>
#include <vector>

#define BENCH_API extern "C" __attribute__((visibility("default")))

namespace {

void nothing(const at::Tensor&) {}
void nothing_of_four(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) {}

// Operators with a kernel for CUDA that does nothing: what is left is the call.
TORCH_LIBRARY(firn_bench, library) {
  library.def("nothing(Tensor a) -> ()");
  library.def("nothing_of_four(Tensor a, Tensor b, Tensor c, Tensor d) -> ()");
}
TORCH_LIBRARY_IMPL(firn_bench, CUDA, library) {
  library.impl("nothing", nothing);
  library.impl("nothing_of_four", nothing_of_four);
}

std::unique_ptr<at::ObserverContext> bare_start(const at::RecordFunction&) { return nullptr; }
void bare_end(const at::RecordFunction&, at::ObserverContext*) {}

at::RecordFunctionCallback bare_callback() {
  return at::RecordFunctionCallback(bare_start, bare_end)
      .needsInputs(true)
      .needsOutputs(true)
      .scopes({at::RecordScope::FUNCTION});
}

template <class Call>
double ns_each(int64_t times, Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) call();
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(times);
}

}  // namespace

/// Who watches operators: 0 nobody, 1 a callback that does nothing and is given what Firn's
/// observer is given, 2 those who did before the first call of this.
BENCH_API void operators_watched_by(int who) {
  static at::CallbackHandle bare = 0, first = 0;
  if (first == 0) {
    first = at::addGlobalCallback(bare_callback());
    at::removeCallback(first);
  }
  if (bare) at::removeCallback(bare);
  bare = who == 1 ? at::addGlobalCallback(bare_callback()) : 0;
  // (Handles are given in order.)
  for (at::CallbackHandle each = 1; each < first; ++each)
    who == 2 ? at::reenableCallback(each) : at::disableCallback(each);
}

/// An operator that does nothing with so many tensors (0: a view; 1; 4) of 2 MiB each.
BENCH_API double operator_ns(int64_t tensors, int64_t times) {
  c10::InferenceMode without_autograd;
  std::vector<at::Tensor> given;
  for (int i = 0; i < 4; ++i)
    given.push_back(at::empty({512, 1024}, at::device(at::kCUDA).dtype(at::kFloat)));
  static const auto one = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("firn_bench::nothing", "")
                              .typed<decltype(nothing)>();
  static const auto four = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("firn_bench::nothing_of_four", "")
                               .typed<decltype(nothing_of_four)>();
  const auto call = [&] {
    if (tensors == 0)
      at::Tensor same = given[0].view({1024, 512});
    else if (tensors == 1)
      one.call(given[0]);
    else
      four.call(given[0], given[1], given[2], given[3]);
  };
  (void)ns_each(times / 10, call);
  return ns_each(times, call);
}
