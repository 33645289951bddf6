// The driver needs device memory for itself while blocks fill the device: for a module, first
// launches, streams, graphs, other contexts' memory. With "told" it is checked that stderr names
// each need, and the knob.
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/gpu/program.h"

namespace {
constexpr size_t arrays = 14, count = 10u << 20;
constexpr size_t streams = 24;

std::FILE* said = nullptr;
int errors = -1;

/// The lines that stderr was told, which it is told then.
std::string said_so_far() {
  std::string words;
  std::rewind(said);
  for (int c; (c = std::fgetc(said)) != EOF;) words.push_back(static_cast<char>(c));
  (void)!::write(errors, words.data(), words.size());
  return words;
}
}  // namespace

int main(int argc, char** argv) {
  const bool told = argc > 2 && std::strcmp(argv[2], "told") == 0;
  errors = ::dup(STDERR_FILENO);
  said = std::tmpfile();
  EXPECT(errors >= 0 && said);
  if (told) {
    EXPECT(::dup2(::fileno(said), STDERR_FILENO) >= 0);
    EXPECT(std::atexit([] { (void)said_so_far(); }) == 0);
  }
  Gpu gpu(kernels_of(argc, argv));
  std::vector<Block> all;
  // Firn's budget is all that is free now; blocks fill it twice.
  for (size_t i = 0; i < arrays; ++i) {
    all.push_back(make(count));
    fill(gpu, all[i], static_cast<Word>(i));
  }
  DO(cuCtxSynchronize());
  std::vector<CUstream> made(streams);
  for (CUstream& stream : made) DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const auto refill = [&] {  // so that the budget is full again
    for (size_t i = 0; i < arrays; ++i) fill(gpu, all[i], static_cast<Word>(i));
    DO(cuCtxSynchronize());
  };
  refill();
  std::vector<CUmodule> modules(10);
  for (CUmodule& module : modules) DO(cuModuleLoad(&module, argv[1]));
  refill();
  // First launches, of which the last are captured; the capture is whole.
  const auto first = [&](size_t module, const char* name) {
    CUfunction function = nullptr;
    DO(cuModuleGetFunction(&function, modules[module], name));
    return function;
  };
  const unsigned long long number = count;
  const Word seed = 77;
  for (size_t i = 2; i < modules.size(); ++i) {
    launch(first(i, "fill"), {&all[i].address, &number, &seed}, made[0]);
    mix(first(i, "mix"), all[i], all[0], all[1], seed, made[0]);
  }
  DO(cuStreamSynchronize(made[0]));
  CUgraph graph = nullptr;
  std::vector<CUgraphExec> execs(8);
  refill();
  const CUfunction fill_again = first(0, "fill"), mix_again = first(1, "mix");
  DO(cuStreamBeginCapture(made[1], CU_STREAM_CAPTURE_MODE_GLOBAL));
  launch(fill_again, {&all[1].address, &number, &seed}, made[1]);
  mix(mix_again, all[2], all[1], all[1], 5, made[1]);
  DO(cuStreamEndCapture(made[1], &graph));
  for (CUgraphExec& exec : execs) DO(cuGraphInstantiate(&exec, graph, 0));
  DO(cuGraphLaunch(execs[0], made[1]));
  DO(cuStreamSynchronize(made[1]));
  // Memory of another context's is the driver's.
  CUcontext other = nullptr;
  CUdeviceptr theirs[4] = {};
  DO(MAKE_CONTEXT(&other, gpu.device));
  for (CUdeviceptr& each : theirs) DO(cuMemAlloc(&each, 16u << 20));
  for (CUdeviceptr each : theirs) DO(cuMemFree(each));
  DO(cuCtxDestroy(other));
  DO(cuCtxSetCurrent(gpu.context));
  for (Block& block : all) add_to_digest(block);
  if (told) {
    const std::string words = said_so_far();
    for (const char* each : {"firn_budget", "a stream", "a module", "a launch", "a graph",
                             "memory that is not Firn's"})
      if (words.find(each) == std::string::npos) {
        std::fprintf(stderr, "not said: %s\n", each);
        return 5;
      }
  }
  return finish();
}
