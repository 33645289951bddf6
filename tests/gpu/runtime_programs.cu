// The programs once more as CUDA C++ over the runtime, for a real GPU: runtime_programs NAME prints
// a digest, the same with and without Firn.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels.cu"

#define DO(call)                                                                         \
  do {                                                                                   \
    const cudaError_t result = (call);                                                   \
    if (result != cudaSuccess) {                                                         \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, cudaGetErrorString(result));       \
      std::exit(3);                                                                      \
    }                                                                                    \
  } while (0)

namespace {
constexpr int arrays = 16;
constexpr unsigned long long count = 1u << 22;

unsigned long long digest = 14695981039346656037ull, live_bytes = 0;

Word* make(Word seed) {
  Word* block = nullptr;
  DO(cudaMalloc(&block, count * sizeof(Word)));
  live_bytes += count * sizeof(Word);
  fill<<<64, 256>>>(block, count, seed);
  DO(cudaGetLastError());
  return block;
}
std::vector<Word*> make_all() {
  std::vector<Word*> all;
  for (Word i = 0; i < arrays; ++i) all.push_back(make(i));
  return all;
}
void add_to_digest(const std::vector<Word*>& all) {
  std::vector<Word> words(count);
  for (const Word* block : all) {
    DO(cudaMemcpy(words.data(), block, count * sizeof(Word), cudaMemcpyDeviceToHost));
    for (Word word : words) digest = (digest ^ word) * 1099511628211ull;
  }
}
template <class T>
T* to_device(const std::vector<T>& values) {
  T* there = nullptr;
  DO(cudaMalloc(&there, values.size() * sizeof(T)));
  DO(cudaMemcpy(there, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return there;
}

void vector() {
  const auto all = make_all();
  for (Word round = 0; round < 3; ++round)
    for (int i = 0; i < arrays; ++i)
      mix<<<64, 256>>>(all[i], all[(i + 1) % arrays], all[(i + 5) % arrays], count, round);
  add_to_digest(all);
}

void gemm() {
  const auto all = make_all();
  for (int round = 0; round < 4; ++round) {
    std::vector<Word*> to, a, b;
    for (int e = 0; e < 2; ++e) {
      to.push_back(all[(round + e) % arrays]);
      a.push_back(all[(round + e + 5) % arrays]);
      b.push_back(all[(round + e + 9) % arrays]);
    }
    Word **c = to_device(to), **x = to_device(a), **y = to_device(b);
    products<<<64, 256>>>(c, const_cast<const Word**>(x), const_cast<const Word**>(y), 2, count);
    DO(cudaDeviceSynchronize());
    for (Word** table : {c, x, y}) DO(cudaFree(table));
  }
  add_to_digest(all);
}

void by_value() {
  const auto all = make_all();
  for (int i = 0; i < arrays; ++i) {
    Sources sources{};
    sources.weight = 3;
    for (int k = 0; k < inputs_most; ++k) sources.in[k] = all[(i + 2 * k + 1) % arrays];
    sources.out = all[i];
    gather<<<64, 256>>>(sources, count);
  }
  add_to_digest(all);
}

void structs() {
  const auto all = make_all();
  const Layer* below = nullptr;
  for (int i = 0; i + 1 < 8; i += 2) below = to_device<Layer>({{all[i], all[i + 1], below, count}});
  for (Word salt = 0; salt < 3; ++salt) {
    layers<<<64, 256>>>(below, salt);
    for (int i = 8; i + 2 < arrays; ++i)
      mix<<<64, 256>>>(all[i], all[i + 1], all[i + 2], count, salt);
  }
  add_to_digest(all);
}

void list() {
  auto all = make_all();
  constexpr int links = 5;
  for (int i = links; i-- > 0;) {
    Link* next = i + 1 < links ? reinterpret_cast<Link*>(all[i + 1]) : nullptr;
    put_link<<<1, 32>>>(reinterpret_cast<Link*>(all[i]), next, i);
    for (int k = links; k + 2 < arrays; ++k)
      mix<<<64, 256>>>(all[k], all[k + 1], all[k + 2], count, i);
  }
  for (Word salt = 0; salt < 3; ++salt) {
    walk<<<1, 32>>>(reinterpret_cast<Link*>(all[0]), all[links + salt], salt);
    for (int k = links; k + 2 < arrays; ++k)
      mix<<<64, 256>>>(all[k], all[k + 1], all[k + 2], count, salt);
  }
  add_to_digest({all.begin() + links, all.end()});
}

void graphs() {
  const auto all = make_all();
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  DO(cudaStreamCreate(&stream));
  DO(cudaDeviceSynchronize());
  DO(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 4; ++i)
    mix<<<64, 256, 0, stream>>>(all[i], all[i + 1], all[i + 2], count, i);
  DO(cudaStreamEndCapture(stream, &graph));
  DO(cudaGraphInstantiate(&exec, graph, 0));
  for (Word round = 0; round < 4; ++round) {
    DO(cudaGraphLaunch(exec, stream));
    DO(cudaStreamSynchronize(stream));
    for (int i = 6; i + 2 < arrays; ++i)
      mix<<<64, 256>>>(all[i], all[i + 1], all[i + 2], count, round);
    DO(cudaDeviceSynchronize());
  }
  add_to_digest(all);
}

void threads() {
  const auto all = make_all();
  DO(cudaDeviceSynchronize());
  std::vector<std::thread> workers;
  for (int t = 0; t < 4; ++t)
    workers.emplace_back([&, t] {
      cudaStream_t stream;
      DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      Word* const* mine = &all[4 * t];
      for (Word round = 0; round < 4; ++round) {
        Word* extra = nullptr;
        DO(cudaMallocAsync(&extra, count * sizeof(Word), stream));
        fill<<<64, 256, 0, stream>>>(extra, count, round);
        for (int i = 0; i < 4; ++i)
          mix<<<64, 256, 0, stream>>>(mine[i], mine[(i + 1) % 4], i % 2 ? extra : mine[(i + 2) % 4],
                                      count, round);
        DO(cudaFreeAsync(extra, stream));
      }
      DO(cudaStreamSynchronize(stream));
      DO(cudaStreamDestroy(stream));
    });
  for (std::thread& worker : workers) worker.join();
  add_to_digest(all);
}
}  // namespace

int main(int argc, char** argv) {
  const struct {
    const char* name;
    void (*run)();
  } programs[] = {{"vector", vector}, {"gemm", gemm}, {"by_value", by_value}, {"structs", structs},
                  {"list", list}, {"graphs", graphs}, {"threads", threads}};
  for (const auto& program : programs)
    if (argc == 2 && std::strcmp(argv[1], program.name) == 0) {
      program.run();
      std::printf("digest %016llx bytes %llu\n", digest, live_bytes);
      return 0;
    }
  std::fprintf(stderr, "usage: %s vector|gemm|by_value|structs|list|graphs|threads\n", argv[0]);
  return 2;
}
