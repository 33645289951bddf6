// The traces of `firn simulate`: below "== tensors" and "== kernels" the two CSV files.
//
// Beyond no crash: an error names the file and one of its lines; ids are there once, sums are
// exact, each use lies between its tensor's first and last; written back it is read as the same;
// where a trace fits a GPU, each of its tensors does.
#include "allocator/simulate/program_trace.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "tests/fuzz/fuzz.h"

using namespace firn;
using namespace firn::simulate;

namespace {

fuzz::Folder& folder() {
  static fuzz::Folder made;
  return made;
}

Result<ProgramTrace> read(const std::string& tensors, const std::string& kernels,
                          unsigned iterations) {
  const std::string path = folder().write("t.tensors.csv", tensors);
  const std::string other = folder().write("t.kernels.csv", kernels);
  Result<ProgramTrace> trace = read_program_trace(folder().path() + "/t", iterations);
  if (!trace)
    fuzz::check_file_error(trace.error().text, {{path, tensors}, {other, kernels}});
  return trace;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + '"';
}

std::string words(const ProgramTrace& trace, std::span<const uint32_t> list) {
  std::string text;
  for (const uint32_t tensor : list)
    text += (text.empty() ? "" : " ") + std::to_string(trace.tensors[tensor].id);
  return text;
}

void check_exact(const ProgramTrace& trace, unsigned iterations) {
  std::set<uint64_t> ids;
  for (const TraceTensor& tensor : trace.tensors) {
    FUZZ_CHECK(ids.insert(tensor.id).second, "a tensor twice");
    FUZZ_CHECK(tensor.bytes > 0 && tensor.bytes <= uint64_t{1} << 46, "bytes");
  }
  fuzz::Wide duration = 0;
  for (size_t k = 0; k < trace.kernels.size(); ++k) {
    const TraceKernel& kernel = trace.kernels[k];
    duration += kernel.duration_ns;
    FUZZ_CHECK(kernel.name_at + kernel.name_bytes <= trace.names.size(), "a name");
    FUZZ_CHECK(kernel.uses_at + kernel.inputs + kernel.outputs <= trace.uses.size(), "uses");
    for (const auto& list : {trace.inputs(kernel), trace.outputs(kernel)}) {
      const std::set<uint32_t> once(list.begin(), list.end());
      FUZZ_CHECK(once.size() == list.size(), "a tensor twice in a list");
      for (const uint32_t tensor : list) {
        FUZZ_CHECK(tensor < trace.tensors.size(), "no such tensor");
        FUZZ_CHECK(trace.tensors[tensor].first <= k && trace.tensors[tensor].last >= k,
                   "a use outside its tensor's life");
      }
    }
  }
  FUZZ_CHECK(duration == trace.duration_ns && duration * iterations <= uint64_t{1} << 56,
             "durations");
}

void check_fit(const ProgramTrace& trace, uint64_t gpu_bytes, const std::string& tensors,
               const std::string& kernels) {
  const Result<void> fits = trace.check_fits(gpu_bytes);
  if (!fits) {
    fuzz::check_file_error(fits.error().text,
                           {{trace.tensors_path, tensors}, {trace.kernels_path, kernels}});
    return;
  }
  for (const TraceKernel& kernel : trace.kernels)
    for (const auto& list : {trace.inputs(kernel), trace.outputs(kernel)})
      for (const uint32_t tensor : list)
        FUZZ_CHECK(trace.tensors[tensor].bytes <= gpu_bytes, "a tensor fits in fewer bytes");
  for (const TraceTensor& tensor : trace.tensors)
    FUZZ_CHECK(!tensor.persistent || tensor.bytes <= gpu_bytes, "a persistent tensor does");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto texts = fuzz::texts_of(data, size);
  const std::string &tensors = texts["tensors"], &kernels = texts["kernels"];
  const unsigned iterations = 1 + static_cast<unsigned>(size % 7);
  Result<ProgramTrace> trace = read(tensors, kernels, iterations);
  if (!trace) return 0;
  check_exact(*trace, iterations);
  for (const uint64_t gpu_bytes : {uint64_t{1} << 21, uint64_t{1} << 26, uint64_t{1} << 36})
    check_fit(*trace, gpu_bytes, tensors, kernels);

  std::string tensors_again = "bytes,kind,tensor\n";
  for (const TraceTensor& tensor : trace->tensors)
    tensors_again += fmt::format("{},{},{}\n", tensor.bytes,
                                 tensor.persistent ? "persistent" : "transient", tensor.id);
  std::string kernels_again = "kernel,name,duration_ns,inputs,outputs\n";
  for (size_t k = 0; k < trace->kernels.size(); ++k) {
    const TraceKernel& kernel = trace->kernels[k];
    kernels_again += fmt::format("{},{},{},{},{}\n", k, quoted(trace->name(kernel)),
                                 kernel.duration_ns, words(*trace, trace->inputs(kernel)),
                                 words(*trace, trace->outputs(kernel)));
  }
  Result<ProgramTrace> again = read(tensors_again, kernels_again, iterations);
  FUZZ_CHECK(again, "written back: %s", again.error().text.c_str());
  FUZZ_CHECK(again->names == trace->names && again->uses == trace->uses &&
                 again->duration_ns == trace->duration_ns &&
                 again->tensors.size() == trace->tensors.size() &&
                 again->kernels.size() == trace->kernels.size(),
             "written back it is another");
  for (size_t i = 0; i < trace->tensors.size(); ++i) {
    const TraceTensor &a = trace->tensors[i], &b = again->tensors[i];
    FUZZ_CHECK(a.id == b.id && a.bytes == b.bytes && a.persistent == b.persistent &&
                   a.first == b.first && a.last == b.last,
               "tensor %zu", i);
  }
  return 0;
}
