// What a trace says of a block, in order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "allocator/record/trace.h"
#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {
/// The events of the block at that address, one after the other.
std::string events_of(const std::string& path, const void* block) {
  std::ifstream in(path);
  const std::string address = std::to_string(reinterpret_cast<uint64_t>(block));
  std::string text, line;
  while (std::getline(in, line)) {
    const size_t event = line.find(',') + 1, device = line.find(',', event) + 1;
    const size_t stream = line.find(',', device) + 1, at = line.find(',', stream) + 1;
    if (line.compare(at, line.find(',', at) - at, address) == 0)
      text += (text.empty() ? "" : " ") + line.substr(event, device - event - 1);
  }
  return text;
}
}  // namespace

/// A copy to the device that is refused leaves the block where it was: nothing is on its way then.
TEST(EngineTrace, a_way_back_that_failed_is_told) {
  std::string path = (std::filesystem::temp_directory_path() / "firn-trace-XXXXXX").string();
  ::close(::mkstemp(path.data()));
  Result<std::unique_ptr<TraceWriter>> trace = TraceWriter::create(path);
  ASSERT_TRUE(trace);
  void* block = nullptr;
  {
    SimulationOptions options;
    options.trace = trace->get();
    Simulation sim(options);
    Engine& engine = sim.engine(0);
    Result<void*> made = engine.allocate(4u << 20, nullptr);
    ASSERT_TRUE(made) << describe(made.error());
    block = *made;
    const auto use = [&] {
      Result<Hold> hold = engine.touch(block, nullptr, Access::write);
      ASSERT_TRUE(hold) << describe(hold.error());
      engine.release(*hold, nullptr);
    };
    use();
    engine.spill_all();
    sim.gpu().fail_at("cuMemcpyHtoDAsync", 1, CUDA_ERROR_INVALID_VALUE);
    use();
    sim.gpu().fail_at("*", 0, 0);
    engine.spill_all();
    ASSERT_TRUE(engine.prefetch(block, 4u << 20, nullptr));
    while (engine.pump() || engine.busy()) sim.clock().wait(1'000'000);
    EXPECT_TRUE(engine.free(block));
  }
  (*trace)->flush();
  const std::string events = events_of(path, block);
  std::filesystem::remove(path);
  EXPECT_NE(events.find("fault unfault"), std::string::npos) << events;
  EXPECT_NE(events.find("fault arrived touch"), std::string::npos) << events;
  EXPECT_TRUE(events.ends_with("prefetch arrived free")) << events;
}

/// A flush waits for the rows told so far and for no more: rows that others tell of meanwhile are
/// few, and nobody has them written.
TEST(EngineTrace, a_flush_ends_though_others_go_on_telling) {
  std::string path = (std::filesystem::temp_directory_path() / "firn-trace-XXXXXX").string();
  ::close(::mkstemp(path.data()));
  Result<std::unique_ptr<TraceWriter>> trace = TraceWriter::create(path);
  ASSERT_TRUE(trace);
  std::atomic<unsigned> begun{0}, rounds{0};
  constexpr unsigned rounds_most = 3000;
  using Time = std::chrono::steady_clock;
  std::thread other([&] {  // one row for each flush, about while it waits
    for (unsigned seen = 0; seen < rounds_most;)
      if (begun.load() > seen) {
        ++seen;
        const auto until = Time::now() + std::chrono::microseconds(seen % 64);
        while (Time::now() < until) {}
        (*trace)->row(seen, "other", 0, 0, 0, 0);
      }
  });
  std::future<void> flushes = std::async(std::launch::async, [&] {
    for (; rounds < rounds_most; ++rounds) {
      (*trace)->row(rounds, "own", 0, 0, 0, 0);
      ++begun;
      (*trace)->flush();
      const std::string own = std::to_string(rounds) + ",own,";
      if (rounds % 1000 == 0) {
        std::ifstream in(path);
        const std::string all(std::istreambuf_iterator<char>(in), {});
        EXPECT_NE(all.find(own), std::string::npos) << "is written when the flush is over";
      }
    }
  });
  const bool ended = flushes.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  EXPECT_TRUE(ended) << "flush " << rounds << " does not return";
  if (!ended) std::_Exit(1);  // (a future waits for its thread)
  other.join();
  std::filesystem::remove(path);
}
