// What a trace says of a block, in order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "allocator/trace.h"
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
    EXPECT_TRUE(engine.free(block));
  }
  (*trace)->flush();
  const std::string events = events_of(path, block);
  std::filesystem::remove(path);
  EXPECT_NE(events.find("fault unfault"), std::string::npos) << events;
  EXPECT_TRUE(events.ends_with("fault arrived touch free")) << events;
}
