// Blocks that are used one after the other, round after round, by several threads on two streams
// each: every visit verifies on the device what the last one wrote, word for word, and writes
// something else. At half of the memory every visit is a fault, and something else has left for it.
//
//   cycles KERNELS [THREADS BLOCKS MIB ROUNDS]   prints "visits N" too, in blocks
#include <thread>

#include "tests/gpu/program.h"

namespace {
struct Shape {
  size_t threads = 3, blocks = 6, count = 1u << 18, rounds = 4;
};

struct Visited {
  Block block;
  CUevent last = nullptr;  // what its last visit did, on whatever stream
  Word seed = 0;
};

void verify(CUfunction kernel, const Block& block, Word seed, const Block& wrong, CUstream stream) {
  const unsigned long long count = block.count;
  launch(kernel, {&block.address, &count, &seed, &wrong.address}, stream);
}

class Worker {
 public:
  Worker(const Gpu& gpu, const Shape& shape, size_t number, const Block& shared, const Block& wrong)
      : gpu_(gpu), shape_(shape), shared_(shared), wrong_(wrong), random_(static_cast<Word>(number)) {
    for (size_t i = 0; i < shape.blocks; ++i) {
      Visited each{make(shape.count), nullptr, random()};
      DO(cuEventCreate(&each.last, 2));
      fill(gpu, each.block, each.seed);
      all_.push_back(each);
    }
  }
  void run() {
    DO(cuCtxSetCurrent(gpu_.context));
    for (CUstream& stream : streams_) DO(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t round = 0; round < shape_.rounds; ++round) {
      // By turns as they lie, and as it comes.
      for (size_t i = 0; i < all_.size(); ++i)
        visit(round % 2 ? all_[random() % all_.size()] : all_[i], streams_[(i + round) % 2]);
    }
    for (Visited& each : all_) visit(each, streams_[0]);
    for (CUstream stream : streams_) DO(cuStreamSynchronize(stream));
    for (CUstream stream : streams_) DO(cuStreamDestroy(stream));
  }
  size_t visits() const { return visits_; }
  const Block& first() const { return all_.front().block; }

 private:
  Word random() { return random_ = scramble(random_ + 0x9e3779b9u); }
  void visit(Visited& at, CUstream stream) {
    DO(cuStreamWaitEvent(stream, at.last, 0));
    verify(verify_, at.block, at.seed, wrong_, stream);
    at.seed = random();
    fill(gpu_, at.block, at.seed, stream);
    DO(cuEventRecord(at.last, stream));
    if (++visits_ % 8 == 0) verify(verify_, shared_, 1, wrong_, stream);
  }

  const Gpu& gpu_;
  const Shape shape_;
  const Block shared_, wrong_;
  const CUfunction verify_ = gpu_.kernel("verify");
  Word random_;
  CUstream streams_[2] = {};
  std::vector<Visited> all_;
  size_t visits_ = 0;
};

Shape shape_of(int argc, char** argv) {
  Shape shape;
  if (argc == 2) return shape;
  if (argc != 6) {
    std::fprintf(stderr, "usage: cycles KERNELS [THREADS BLOCKS MIB ROUNDS]\n");
    std::exit(2);
  }
  const auto number = [&](int i) { return static_cast<size_t>(std::strtoul(argv[i], nullptr, 10)); };
  shape.threads = number(2);
  shape.blocks = number(3);
  shape.count = number(4) << 18;
  shape.rounds = number(5);
  return shape;
}
}  // namespace

int main(int argc, char** argv) {
  Gpu gpu(kernels_of(argc, argv));
  const Shape shape = shape_of(argc, argv);
  const Block shared = make(shape.count), wrong = make(1024);
  fill(gpu, shared, 1);
  DO(cuMemsetD32(wrong.address, 0, wrong.count));
  std::vector<Worker> workers;
  workers.reserve(shape.threads);
  for (size_t i = 0; i < shape.threads; ++i) workers.emplace_back(gpu, shape, i, shared, wrong);
  DO(cuCtxSynchronize());
  std::vector<std::thread> threads;
  for (Worker& worker : workers) threads.emplace_back([&worker] { worker.run(); });
  for (std::thread& thread : threads) thread.join();
  size_t visits = 0;
  for (const Worker& worker : workers) visits += worker.visits();
  Word found = 0;
  DO(cuMemcpyDtoH(&found, wrong.address, sizeof found));
  std::printf("visits %zu wrong %u\n", visits, found);
  EXPECT(found == 0);
  add_to_digest(shared);
  add_to_digest(workers.front().first());
  return finish();
}
