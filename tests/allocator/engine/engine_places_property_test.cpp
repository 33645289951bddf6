// Planned places under programs that repeat, and now and then do something else: sizes in another
// order, blocks freed in another order, used on other streams, pinned; memory trimmed, spilled, the
// budget changed, more needed at once than places leave. From a seed; every byte is looked at.
//
//   engine_places_property_test         FIRN_SEEDS (default 60) seeds from 1
//   engine_places_property_test SEED    that seed alone: the command a failure prints
#include <algorithm>
#include <cstdio>
#include <random>
#include <stdexcept>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr uint64_t mib = 1u << 20;

struct Made {
  void* address;
  uint64_t bytes, pattern;
  CUstream home;
};

class Program {
 public:
  explicit Program(uint64_t seed) : random_(seed), simulation_(options(seed)) {
    streams_ = {nullptr, simulation_.make_stream(0)};
    side_ = simulation_.make_stream(0);
    for (int i = 0; i < 2; ++i) weights_.push_back(make(4 * mib, nullptr));
    for (size_t i = 0; i < 5; ++i) {
      sizes_.push_back(mib + 512 * below(8000));
      streams_of_.push_back(below(3) == 0);
    }
  }

  static inline uint64_t placed = 0, barred = 0, zero_copy = 0;

  void run() {
    for (int step = 0; step < 34; ++step) {
      odd_ = step > 8 && below(3) == 0 ? below(9) : none;
      iterate();
      engine().check();
      if (simulation_.counts(0).frame_bytes_peak > budget_) fail("more frames than the budget");
    }
    simulation_.synchronize();
    if (Simulation::wrong_bytes) fail("wrong bytes: " + Simulation::first_wrong);
    const EngineStats stats = engine().stats();
    placed += stats.placed;
    zero_copy += stats.zero_copy_bytes;
    if (stats.lost_blocks) fail("a block was lost");
    for (const Made& weight : weights_) give_back(weight);
    for (int i = 0; i < 100; ++i) {
      engine().trim();
      engine().pump();
      simulation_.clock().wait(1'000'000);
    }
    engine().check();
    if (simulation_.counts(0).frame_bytes != 0) fail("frames are left");
    if (engine().stats().allocated_bytes != 0) fail("allocated bytes are left");
  }

 private:
  static constexpr uint64_t none = UINT64_MAX;

  SimulationOptions options(uint64_t seed) {
    SimulationOptions o;
    o.budget_bytes = budget_ = (12 + seed % 7) * 2 * mib;
    o.host_bytes = 128 * mib;
    o.span_bytes = o.piece_bytes = 2 * mib;
    o.policy = Policy::lifetime;
    o.places = true;
    return o;
  }
  Engine& engine() { return simulation_.engine(0); }
  uint64_t below(uint64_t n) { return random_() % n; }
  [[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

  void iterate() {
    if (odd_ == 0) std::shuffle(sizes_.begin(), sizes_.end(), random_);
    std::vector<Made> kept;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const CUstream stream = streams_[streams_of_[i]];
      read(weights_[i % 2], nullptr);
      Made gone = make(sizes_[sizes_.size() - 1 - i], stream);
      kept.push_back(make(sizes_[i], stream));
      read(gone, stream);
      give_back(gone);
      if (i == 2) happen(kept);
    }
    if (odd_ == 1) std::reverse(kept.begin(), kept.end());
    for (size_t i = kept.size(); i-- > 0;) {
      read(kept[i], kept[i].home);
      write(weights_[i % 2], nullptr);
      give_back(kept[i]);
    }
  }

  void happen(std::vector<Made>& kept) {
    Made& one = kept[below(kept.size())];
    switch (odd_) {
      case 2:
        read(one, side_);
        must(engine().record_stream(one.address, side_), "record_stream");
        break;
      case 3:
        must(engine().pin(one.address, "by the test"), "pin");
        must(engine().unpin(one.address), "unpin");
        ++barred;
        break;
      case 4: engine().trim(); break;
      case 5: engine().spill_all(); break;
      case 6:
        must(engine().set_budget(budget_ - 4 * mib), "set_budget");
        must(engine().set_budget(budget_), "set_budget");
        break;
      case 7: {
        Made large = make(budget_ - 6 * mib, nullptr);
        read(large, nullptr);
        give_back(large);
        break;
      }
      case 8: must(engine().give_address(one.address, "by the test"), "give_address"); break;
    }
  }

  void must(const Result<void>& result, const char* what) {
    if (!result) fail(std::string(what) + ": " + describe(result.error()));
  }
  Made make(uint64_t bytes, CUstream stream) {
    Result<void*> block = engine().allocate(bytes, stream);
    if (!block) fail("allocate: " + describe(block.error()));
    const auto at = reinterpret_cast<uint64_t>(*block);
    if (engine().find(*block)->bytes < bytes) fail("a block too small");
    for (const uint64_t offset : {uint64_t{0}, bytes / 2, bytes - 1})
      if (engine().find(reinterpret_cast<void*>(at + offset))->base != *block)
        fail("a block is not found by its addresses");
    Made made{*block, bytes, 0, stream};
    write(made, stream);
    return made;
  }
  void write(Made& made, CUstream stream) {
    use(made, stream, Access::write);
    made.pattern = ++patterns_;
  }
  void read(Made& made, CUstream stream) { use(made, stream, Access::read); }
  void use(Made& made, CUstream stream, Access access) {
    if (stream != made.home) simulation_.synchronize();
    Result<Hold> hold = engine().touch(made.address, stream, access);
    if (!hold) fail("touch: " + describe(hold.error()));
    const bool launched =
        access == Access::write
            ? simulation_.fill(0, made.address, made.bytes, patterns_ + 1, stream)
            : simulation_.verify(0, made.address, made.bytes, made.pattern, stream);
    if (!launched) fail("launch");
    engine().release(*hold, stream);
    carry_out();
  }
  void give_back(const Made& made) {
    must(engine().free(made.address), "free");
    carry_out();
  }
  void carry_out() {
    simulation_.clock().wait(20'000);
    for (int i = 0; i < 8 && engine().pump(); ++i) simulation_.clock().wait(100'000);
    engine().ponder();
  }

  std::mt19937_64 random_;
  uint64_t budget_ = 0, odd_ = none, patterns_ = 0;
  Simulation simulation_;
  std::vector<CUstream> streams_;
  CUstream side_;
  std::vector<uint64_t> sizes_;
  std::vector<size_t> streams_of_;
  std::vector<Made> weights_;
};

bool run_seed(uint64_t seed, const char* program) {
  try {
    Program(seed).run();
    return true;
  } catch (const std::runtime_error& error) {
    std::printf("seed %llu: %s\n  replay: FIRN_TEST_GPU=%s %s %llu\n", (unsigned long long)seed,
                error.what(), std::getenv("FIRN_TEST_GPU"), program, (unsigned long long)seed);
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return run_seed(std::strtoull(argv[1], nullptr, 0), argv[0]) ? 0 : 1;
  const char* wanted = std::getenv("FIRN_SEEDS");
  const uint64_t seeds = wanted ? std::strtoull(wanted, nullptr, 0) : 60;
  uint64_t failed = 0;
  for (uint64_t seed = 1; seed <= seeds && failed < 5; ++seed) failed += !run_seed(seed, argv[0]);
  if (seeds >= 20 && failed == 0 && (Program::placed == 0 || Program::zero_copy == 0)) {
    std::printf("no place was ever given out, or none was ever in the way\n");
    failed = 1;
  }
  std::printf("%llu seeds, %llu failed, %llu places given\n", (unsigned long long)seeds,
              (unsigned long long)failed, (unsigned long long)Program::placed);
  return failed ? 1 : 0;
}
