// A job whose blocks the processor uses in host memory, too.
#pragma once

#include <string>

#include "tests/allocator/engine/store_job.h"

namespace firn::test {

struct OnHostJob : StoreJob {
  using StoreJob::StoreJob;

  Engine& engine() { return sim.engine(0); }
  std::string state(size_t i) { return engine().find(blocks[i])->state; }
  Result<OnHost> begin(size_t i, Access access) { return engine().on_host(blocks[i], access); }

  /// Compares all of it with what it was given last.
  void read_there(size_t i) {
    Result<OnHost> there = begin(i, Access::read);
    ASSERT_TRUE(there) << describe(there.error());
    expect_whole(*there);
    Simulation::verify(*there, block_bytes, 100 + i);
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
    ASSERT_TRUE(engine().end_on_host(there->name));
  }
  /// Compares, and writes other bytes, which read() expects then.
  void write_there(size_t i) {
    Result<OnHost> there = begin(i, Access::write);
    ASSERT_TRUE(there) << describe(there.error());
    expect_whole(*there);
    Simulation::verify(*there, block_bytes, 100 + i);
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
    Simulation::fill(*there, block_bytes, 200 + i);
    engine().check();
    ASSERT_TRUE(engine().end_on_host(there->name));
    engine().check();
  }
  Result<void> read_written(size_t i) {
    Result<Hold> hold = engine().touch(blocks[i], nullptr, Access::read);
    if (!hold) return hold.error();
    EXPECT_TRUE(sim.verify(0, blocks[i], block_bytes, 200 + i, nullptr));
    engine().release(*hold, nullptr);
    sim.synchronize();
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
    engine().check();
    return {};
  }
  static void expect_whole(const OnHost& there) {
    uint64_t at = 0;
    for (const OnHost::Piece& piece : there.pieces) {
      EXPECT_EQ(piece.offset, at);
      at += piece.bytes;
    }
    EXPECT_EQ(at, block_bytes);
  }
  /// Nothing is left of it.
  void end_all() {
    for (void* block : blocks)
      if (engine().find(block)) {
        EXPECT_TRUE(engine().free(block));
      }
    sim.synchronize();
    settle();
    engine().check();
    EXPECT_EQ(engine().stats().host_used_bytes, 0u);
    if (sim.store()) {
      EXPECT_EQ(sim.store()->stats().slots_in_use, 0u);
    }
  }
};

}  // namespace firn::test
