// Frees while the device is at work: whether cuMemFree waits, and that its memory is nobody else's
// before that is over. `frees KERNELS CASE ahead|waits`: the last word is what cuMemFree does.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "tests/gpu/program.h"

namespace {
constexpr size_t count = 1u << 20, half_of_budget = 10u << 20;  // words: 4 and 40 MiB

/// Work that goes on until it is let go, or for 1.5 s.
class Busy {
 public:
  explicit Busy(const Gpu& gpu) : kernel_(gpu.kernel("wait_for")) {
    void* memory = nullptr;
    DO(cuMemAllocHost(&memory, sizeof(Word)));
    flag_ = new (memory) Word(0);
  }
  void on(CUstream stream) {
    __atomic_store_n(flag_, 0u, __ATOMIC_RELEASE);
    again(stream);
  }
  void again(CUstream stream) { launch(kernel_, {&flag_}, stream); }
  void let_go() { __atomic_store_n(flag_, 1u, __ATOMIC_RELEASE); }

 private:
  CUfunction kernel_;
  Word* flag_ = nullptr;
};

struct Case {
  Gpu& gpu;
  Busy& busy;
  bool ahead;
  CUstream one = nullptr, other = nullptr;

  /// Has the free returned while the work goes on?
  void expect_ahead(CUstream stream) const {
    const CUresult state = cuStreamQuery(stream);
    EXPECT(state == (ahead ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS));
  }
  void expect_filled(const Block& block, Word seed) const {
    std::vector<Word> words(block.count);
    DO(cuMemcpyDtoH(words.data(), block.address, block.bytes()));
    size_t wrong = 0;
    for (size_t i = 0; i < words.size(); ++i)
      wrong += words[i] != scramble(seed + static_cast<Word>(i));
    if (wrong) std::fprintf(stderr, "%zu words are wrong\n", wrong);
    EXPECT(wrong == 0);
  }
  void finish_all() const {
    busy.let_go();
    DO(cuCtxSynchronize());
  }
  /// `use` enqueues, behind work that goes on, what writes the block: it is freed then, and no
  /// later allocation may have its memory meanwhile. `before`: what has to be done before that.
  template <class Use, class Before>
  void kept(Use&& use, bool destroyed, Before&& before) {
    Block freed = make(count);
    before(freed);
    busy.on(one);
    use(freed);
    if (destroyed) DO(cuStreamDestroy(one));
    const CUdeviceptr address = freed.address;
    end(freed);
    if (!destroyed) expect_ahead(one);
    std::vector<Block> later;
    for (int i = 0; i < 4; ++i) {
      later.push_back(make(count));
      if (ahead) EXPECT(later.back().address != address);
      fill(gpu, later.back(), static_cast<Word>(i), other);
    }
    DO(cuStreamSynchronize(other));
    finish_all();
    for (int i = 0; i < 4; ++i) expect_filled(later[i], static_cast<Word>(i));
    for (Block& block : later) end(block);
    if (destroyed) one = nullptr;
  }
  template <class Use>
  void kept(Use&& use, bool destroyed = false) {
    kept(use, destroyed, [](const Block&) {});
  }
};

void returns_before(Case& c) {
  CUstream blocking = nullptr;
  DO(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  for (CUstream stream : {static_cast<CUstream>(nullptr), CU_STREAM_PER_THREAD, blocking, c.one})
    for (size_t words : {size_t{256}, count}) {
      Block block = make(words);
      c.busy.on(stream);
      end(block);
      c.expect_ahead(stream);
      c.finish_all();
    }
}

/// Work that no call names the block in: its address lies in memory.
void kept_in_a_table(Case& c) {
  const Block from = make(count);
  fill(c.gpu, from, 3);
  CUdeviceptr table = 0;
  DO(cuMemAlloc(&table, sizeof(Layer)));
  const Word salt = 1;
  c.kept([&](const Block&) { launch(c.gpu.kernel("layers"), {&table, &salt}, c.one); }, false,
         [&](const Block& block) {
           const Layer layer{reinterpret_cast<Word*>(block.address),
                             reinterpret_cast<const Word*>(from.address), nullptr, count};
           DO(cuMemcpyHtoD(table, &layer, sizeof layer));
           Block another = make(count);
           end(another);  // (this one waits: a copy from the host was made)
         });
}

void kept_in_a_graph(Case& c) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  c.kept([&](const Block& block) {
    c.busy.let_go();
    DO(cuStreamSynchronize(c.one));
    DO(cuStreamBeginCapture(c.one, CU_STREAM_CAPTURE_MODE_RELAXED));
    c.busy.on(c.one);
    fill(c.gpu, block, 99, c.one);
    Block meanwhile = make(count);
    end(meanwhile);
    DO(cuStreamEndCapture(c.one, &graph));
    DO(cuGraphInstantiate(&exec, graph, 0));
    // Work that the stream was given before is behind this free: of the graph its launch tells.
    Block before = make(count);
    end(before);
    DO(cuGraphLaunch(exec, c.one));
  });
}

/// An allocation that has no room but what was freed waits for it, longer than for other work.
void room_is_waited_for(Case& c, int waits, bool let_go) {
  Block first = make(half_of_budget);
  c.busy.on(c.one);
  for (int i = 1; i < waits; ++i) c.busy.again(c.one);
  fill(c.gpu, first, 1, c.one);
  end(first);
  c.expect_ahead(c.one);
  std::thread later([&] {
    if (!let_go) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    c.busy.let_go();
  });
  Block second = make(half_of_budget);
  DO(cuStreamQuery(c.one));
  fill(c.gpu, second, 2);
  later.join();
  c.finish_all();
  c.expect_filled(second, 2);
}

/// Far more than the budget, one after the other.
void all_comes_back(Case& c) {
  for (Word i = 0; i < 400; ++i) {
    Block block = make(count);
    fill(c.gpu, block, i, i % 2 ? c.one : c.other);
    end(block);
  }
  DO(cuCtxSynchronize());
  Block all = make(half_of_budget);
  end(all);
}

void many(Case& c) {
  std::vector<Block> blocks;
  for (int i = 0; i < 3000; ++i) blocks.push_back(make(i % 500 ? 1024 : count));
  c.busy.on(c.one);
  for (Block& block : blocks) end(block);
  c.expect_ahead(c.one);
  c.finish_all();
  Block all = make(half_of_budget);
  fill(c.gpu, all, 5);
  c.expect_filled(all, 5);
}

/// Threads with streams of their own, which check each block on the device before they free it.
void threads(Case& c) {
  Block wrong = make(64);
  DO(cuMemsetD32(wrong.address, 0, wrong.count));
  const CUfunction fills = c.gpu.kernel("fill"), checks = c.gpu.kernel("verify");
  std::vector<std::thread> all;
  for (Word t = 0; t < 4; ++t)
    all.emplace_back([&, t] {
      DO(cuCtxSetCurrent(c.gpu.context));
      CUstream stream = nullptr;
      for (Word i = 0; i < 120; ++i) {
        if (i % 40 == 0) {
          if (stream) DO(cuStreamDestroy(stream));
          DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        }
        const unsigned long long words = i % 3 ? 1u << 14 : 1u << 18;
        const Word seed = 1000 * t + i;
        CUdeviceptr block = 0;
        DO(cuMemAlloc(&block, words * sizeof(Word)));
        launch(fills, {&block, &words, &seed}, stream);
        launch(checks, {&block, &words, &seed, &wrong.address}, stream);
        DO(cuMemFree(block));
      }
    });
  for (std::thread& thread : all) thread.join();
  DO(cuCtxSynchronize());
  Word found = 0;
  DO(cuMemcpyDtoH(&found, wrong.address, sizeof found));
  EXPECT(found == 0);
}

/// The source of a copy from the host may be overwritten behind a free, as it always could.
void sources_are_read(Case& c) {
  std::vector<Word> right(count, 3), wrong(count, 4);
  Word* source = nullptr;
  DO(cuMemAllocHost(reinterpret_cast<void**>(&source), count * sizeof(Word)));
  std::copy(right.begin(), right.end(), source);
  const Block to = make(count);
  c.busy.on(c.one);
  DO(cuMemcpyHtoDAsync(to.address, source, to.bytes(), c.one));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    c.busy.let_go();
  });
  Block other = make(count);
  end(other);
  std::copy(wrong.begin(), wrong.end(), source);
  later.join();
  std::vector<Word> found(count);
  DO(cuCtxSynchronize());
  DO(cuMemcpyDtoH(found.data(), to.address, to.bytes()));
  EXPECT(found == right);
}

/// Results that were on their way to the host are there behind a free, as they always were; and
/// frees after that one do not wait.
void results_are_there(Case& c, bool by_graph) {
  Word* results = nullptr;
  DO(cuMemAllocHost(reinterpret_cast<void**>(&results), count * sizeof(Word)));
  const Block from = make(count);
  fill(c.gpu, from, 7);
  DO(cuCtxSynchronize());
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  if (by_graph) DO(cuStreamBeginCapture(c.one, CU_STREAM_CAPTURE_MODE_RELAXED));
  if (!by_graph) c.busy.on(c.one);
  DO(cuMemcpyDtoHAsync(results, from.address, from.bytes(), c.one));
  if (by_graph) {
    DO(cuStreamEndCapture(c.one, &graph));
    DO(cuGraphInstantiate(&exec, graph, 0));
    c.busy.on(c.one);
    DO(cuGraphLaunch(exec, c.one));
  }
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    c.busy.let_go();
  });
  Block other = make(count);
  end(other);
  EXPECT(results[count - 1] == scramble(static_cast<Word>(7 + count - 1)));
  later.join();
  c.busy.on(c.one);
  Block another = make(count);
  end(another);
  c.expect_ahead(c.one);
  c.finish_all();
}

/// While another context is current a free waits, whoever answers.
void waits_in_another_context(Case& c) {
  CUcontext another = nullptr, left = nullptr;
  DO(MAKE_CONTEXT(&another, c.gpu.device));
  DO(cuCtxPopCurrent(&left));
  Block block = make(count);
  c.busy.on(c.one);
  DO(cuCtxPushCurrent(another));
  end(block);
  DO(cuCtxPopCurrent(&left));
  DO(cuStreamQuery(c.one));
  DO(cuCtxDestroy(another));
}

void run(const std::string& name, Case& c) {
  if (name == "returns_before") return returns_before(c);
  if (name == "kernel") return c.kept([&](const Block& b) { fill(c.gpu, b, 99, c.one); });
  if (name == "table") return kept_in_a_table(c);
  if (name == "fill")
    return c.kept([&](const Block& b) { DO(cuMemsetD32Async(b.address, 9, b.count, c.one)); });
  if (name == "destroyed")
    return c.kept([&](const Block& b) { fill(c.gpu, b, 99, c.one); }, true);
  if (name == "graph") return kept_in_a_graph(c);
  if (name == "room") return room_is_waited_for(c, 1, true);
  if (name == "room_long") return room_is_waited_for(c, 4, false);
  if (name == "back") return all_comes_back(c);
  if (name == "many") return many(c);
  if (name == "threads") return threads(c);
  if (name == "sources") return sources_are_read(c);
  if (name == "results" || name == "results_of_a_graph")
    return results_are_there(c, name != "results");
  if (name == "another_context") return waits_in_another_context(c);
  std::fprintf(stderr, "no such case: %s\n", name.c_str());
  std::exit(2);
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  if (argc < 4) return 2;
  Busy busy(gpu);
  Case c{gpu, busy, std::strcmp(argv[3], "ahead") == 0};
  DO(cuStreamCreate(&c.one, CU_STREAM_NON_BLOCKING));
  DO(cuStreamCreate(&c.other, CU_STREAM_NON_BLOCKING));
  // The first free of a process waits.
  Block first = make(count);
  end(first);
  run(argv[2], c);
  return finish();
}
