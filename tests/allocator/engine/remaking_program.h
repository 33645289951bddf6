// A program whose operators can be run again, for tests: what an operator writes depends on what
// its inputs hold, and each run, the first and later ones, compares the inputs with what they held
// when its recipe was given.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "firn/remaker.h"
#include "tests/allocator/simulation.h"

namespace firn::test {

inline constexpr size_t MiB = 1u << 20;

/// Memory for four blocks of 4 MiB, which leave span by span.
inline SimulationOptions budget_18mib() {
  SimulationOptions options = small_budget();
  options.span_bytes = 2 * MiB;
  return options;
}

class RemakingProgram final : public Remaker {
 public:
  explicit RemakingProgram(Simulation& sim, int device = 0) : sim_(sim), device_(device) {
    engine().remake_with(this);
  }
  ~RemakingProgram() override { engine().remake_with(nullptr); }
  Engine& engine() { return sim_.engine(device_); }

  void* make(size_t bytes, CUstream stream = nullptr) {
    Result<void*> made = engine().allocate(bytes, stream);
    EXPECT_TRUE(made) << describe(made.error());
    if (!made) return nullptr;
    contents_[*made] = {bytes, 0};
    return *made;
  }
  /// Writes a content of its own.
  void write(void* block, uint64_t content, CUstream stream = nullptr) {
    Result<Hold> hold = engine().touch(block, stream, Access::write);
    ASSERT_TRUE(hold) << describe(hold.error());
    contents_[block].content = content;
    ASSERT_TRUE(sim_.fill(device_, block, contents_[block].bytes, content, stream));
    engine().release(*hold, stream);
  }
  Result<void> try_read(void* block, CUstream stream = nullptr) {
    Result<Hold> hold = engine().touch(block, stream, Access::read);
    if (!hold) return hold.error();
    const Content& of = contents_[block];
    EXPECT_TRUE(sim_.verify(device_, block, of.bytes, of.content, stream));
    engine().release(*hold, stream);
    return {};
  }
  void read(void* block, CUstream stream = nullptr) {
    Result<void> done = try_read(block, stream);
    ASSERT_TRUE(done) << describe(done.error());
  }
  /// Runs an operator and gives its recipe. Its number, or 0 where the recipe was refused.
  uint64_t run(void* output, const std::vector<void*>& inputs, CUstream stream = nullptr,
               bool chosen = true, bool keep_inputs = false) {
    std::vector<Hold> holds;
    Run run{output, {}, 1};
    const auto touch = [&](void* block, Access access) {
      Result<Hold> hold = engine().touch(block, stream, access);
      EXPECT_TRUE(hold) << describe(hold.error());
      if (hold) holds.push_back(*hold);
    };
    for (void* input : inputs) touch(input, Access::read);
    touch(output, Access::write);
    for (void* input : inputs) {
      run.inputs.emplace_back(input, contents_[input]);
      run.content = run.content * 31 + contents_[input].content;
    }
    const uint64_t id = next_++;
    contents_[output].content = run.content = run.content * 31 + id;
    EXPECT_TRUE(enqueue(run, stream));
    runs_[id] = run;
    const std::vector<const void*> read(inputs.begin(), inputs.end());
    refused = engine().give_recipe(output, {id, read, 1000, chosen, keep_inputs});
    for (Hold hold : holds) engine().release(hold, stream);
    return refused ? id : 0;
  }
  void free(void* block) {
    ASSERT_TRUE(engine().free(block));
    contents_.erase(block);
  }
  std::string state(void* block) {
    const auto info = engine().find(block);
    return info ? info->state : "gone";
  }
  /// All that may leave does; then this has to be where it is.
  void away(void* block, const std::string& where = "dropped") {
    engine().spill_all();
    engine().check();
    ASSERT_EQ(state(block), where);
  }
  struct Row {
    void* first;
    void* middle;
    void* last;
  };
  /// Blocks of 4 MiB, of which the first is written.
  Row make_row() {
    const Row row{make(4 * MiB), make(4 * MiB), make(4 * MiB)};
    write(row.first, 1);
    return row;
  }
  /// It has no way back but a copy.
  void expect_moves(void* block) {
    EXPECT_EQ(engine().stats().recipes, 0u);
    away(block, "hosted");
    read(block);
    settle();
  }
  struct Dropped {
    void* in;
    void* out;
    uint64_t recipe;
  };
  /// A block of 4 MiB that was made from another, and is away.
  Dropped drop_one() {
    Dropped made{make(4 * MiB), make(4 * MiB), 0};
    write(made.in, 1);
    made.recipe = run(made.out, {made.in});
    away(made.out);
    return made;
  }
  void settle() {
    sim_.synchronize();
    for (int i = 0; i < 1000 && (engine().pump() || engine().busy()); ++i)
      sim_.clock().wait(1'000'000);
    engine().check();
    EXPECT_EQ(Simulation::wrong_bytes, 0u) << Simulation::first_wrong;
  }

  Result<void> remake(uint64_t recipe, void* address, size_t bytes,
                      CUstream stream) noexcept override {
    EXPECT_TRUE(under_way_.insert({recipe, true}).second) << "made twice at once";
    made.push_back(recipe);
    const Run& run = runs_.at(recipe);
    EXPECT_EQ(run.output, address);
    EXPECT_EQ(contents_.count(address) ? contents_[address].bytes : bytes, bytes);
    last_stream = stream;
    if (during) during(recipe);
    Result<void> done;
    if (failures > 0 && failures-- > 0)
      done = make_error(Code::driver, 1, "the test says no");
    if (done || enqueues_and_fails) {
      EXPECT_TRUE(enqueue(run, stream));
    }
    under_way_.erase(recipe);
    return done;
  }

  std::vector<uint64_t> made;        // recipes, in the order in which they were run again
  unsigned failures = 0;             // so many more runs fail,
  bool enqueues_and_fails = false;   // with their work enqueued
  std::function<void(uint64_t)> during;
  CUstream last_stream = nullptr;
  Result<void> refused;              // give_recipe()'s last answer

 private:
  struct Content {
    size_t bytes = 0;
    uint64_t content = 0;
  };
  struct Run {
    void* output;
    std::vector<std::pair<void*, Content>> inputs;
    uint64_t content;
  };
  bool enqueue(const Run& run, CUstream stream) {
    bool done = true;
    for (const auto& [input, of] : run.inputs)
      done &= sim_.verify(device_, input, of.bytes, of.content, stream);
    const size_t bytes = bytes_of(run.output);
    return done && sim_.fill(device_, run.output, bytes, run.content, stream);
  }
  size_t bytes_of(void* block) {
    if (const auto found = contents_.find(block); found != contents_.end())
      bytes_[block] = found->second.bytes;
    return bytes_[block];  // (freed, and kept)
  }

  Simulation& sim_;
  const int device_;
  std::map<void*, Content> contents_;
  std::map<void*, size_t> bytes_;
  std::map<uint64_t, Run> runs_;
  std::map<uint64_t, bool> under_way_;
  uint64_t next_ = 1;
};

}  // namespace firn::test
