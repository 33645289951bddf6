// The engine against a naive model: random sizes, streams, touches, frees, hints, faults, on
// several devices, from a seed. The model keeps, per block, the seed of the pattern last written to
// it.
//
//   engine_property_test              FIRN_SEEDS (default 240) seeds from 1
//   engine_property_test SEED         that seed alone: the command a failure prints
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>

#include "tests/allocator/simulation.h"

using namespace firn;
using namespace firn::test;

namespace {

struct ModelBlock {
  void* address;
  size_t bytes;
  uint64_t pattern = 0;  // 0: never written
  int device;
  CUstream home;
  CUstream last;                 // the stream of its last use
  std::set<CUstream> used_on;
  bool pinned = false;
  bool touched = false;
};

struct Failure {
  std::string what;
};

class World {
 public:
  explicit World(uint64_t seed)
      : random_(seed), seed_(seed), options_(draw_options(seed)), sim_(options_) {
    for (int device = 0; device < options_.devices; ++device)
      for (int i = 0; i < 3; ++i)
        streams_[device].push_back(i == 0 ? nullptr : sim_.make_stream(device));
  }

  void run() {
    if (options_.policy != Policy::age && below(4) != 0) {
      // The same again and again, as training is: some blocks stay, the others go.
      for (kept_ = 0; kept_ < 6; kept_ = std::max<size_t>(blocks_.size(), kept_ + 1)) allocate();
      kept_ = blocks_.size();
      for (int iteration = 0; iteration < 5; ++iteration) {
        random_.seed(seed_ * 31);
        steps(60);
        while (blocks_.size() > kept_) free_at(blocks_.size() - 1);
        if (sim_.engine(0).stats().period_found) ++periods_found;
      }
    }
    steps(60 + below(90));
    finish();
  }

  static inline uint64_t periods_found = 0, used_on_host = 0;

 private:
  void steps(unsigned steps) {
    for (unsigned i = 0; i < steps; ++i) {
      step();
      if (i % 8 == 0)
        for (int d = 0; d < options_.devices; ++d) sim_.engine(d).check();
      expect_budget();
      expect_nothing_leaves();
    }
  }

  uint64_t below(uint64_t n) { return random_() % n; }

  SimulationOptions draw_options(uint64_t seed) {
    SimulationOptions o;
    o.devices = 1 + static_cast<int>(below(3));
    o.budget_bytes = (10 + below(24)) * (2u << 20);
    o.host_bytes = (16 + below(48)) << 20;
    o.piece_bytes = (1 + below(2)) * (2u << 20);
    o.span_bytes = uint64_t{2u << 20} << 2 * below(3);  // mapped bit by bit, or nearly whole
    o.with_store = below(8) != 0;
    o.adversarial = below(8) == 0;
    if (below(2) == 0) {
      o.policy = Policy::lifetime;
      o.greedy = below(3) == 0;
      o.watch_fraction = 0;
      o.places = !o.greedy;
    }
    o.store.seed = seed;
    o.store.latency_ns = below(200'000);
    if (below(4) == 0) {
      faulty_ = true;
      o.store.write_error_rate = 0.05;
      o.store.read_error_rate = 0.05;
      o.store.corrupt_rate = 0.05;
    }
    if (below(8) == 0) {
      full_ = true;
      o.store.capacity_bytes = below(64) << 20;
    }
    if (!o.with_store) full_ = true;
    o.sums = below(4) == 0;
    return o;
  }

  void fail(const std::string& what) { throw Failure{what}; }
  template <class T>
  void must(const Result<T>& result, const char* what) {
    if (!result) fail(std::string(what) + ": " + describe(result.error()));
  }

  void step() {
    switch (below(16)) {
      case 0: case 1: case 2: case 3: allocate(); break;
      case 4: case 5: case 6: use(true); break;
      case 7: case 8: case 9: use(false); break;
      case 10: case 11: release_one(); break;
      case 12: hint(); break;
      case 13: sim_.clock().wait(below(500'000)); break;
      case 14:
        sim_.engine(any_device()).pump();
        sim_.engine(any_device()).ponder();
        break;
      case 15: rare(); break;
    }
    if (sim_.wrong_bytes) fail("wrong bytes: " + sim_.first_wrong);
  }

  int any_device() { return static_cast<int>(below(options_.devices)); }

  size_t draw_size() {
    switch (below(8)) {
      case 0: return 1 + below(4096);
      case 1: return 4096 + below(1u << 20);
      case 2: return (2u << 20) + below(3) - 1;       // a granule and its neighbours
      case 3: return (1u << 20) + below(3) - 1;       // the border between small and large
      case 4: return (1u << 20) + below(17u << 20);
      default: return (1u << 20) + below(9u << 20);
    }
  }

  void allocate() {
    int device = any_device();
    CUstream stream = streams_[device][below(3)];
    size_t bytes = draw_size();
    Result<void*> made = sim_.engine(device).allocate(bytes, stream);
    if (!made) {
      expect_no_room(device, bytes, made.error());
      return;
    }
    auto address = reinterpret_cast<uint64_t>(*made);
    for (const ModelBlock& other : blocks_) {
      auto begin = reinterpret_cast<uint64_t>(other.address);
      if (address < begin + other.bytes && begin < address + bytes) fail("blocks overlap");
    }
    ModelBlock block{*made, bytes, 0, device, stream, stream, {stream}};
    blocks_.push_back(block);
    if (below(4) != 0) write(blocks_.back(), stream);
  }

  // Out of memory is right only when what may not leave, with the request, exceeds the budget.
  void expect_no_room(int device, size_t bytes, const Error& error) {
    if (error.code != Code::out_of_memory && error.code != Code::lost)
      fail("allocation: " + describe(error));
    if (full_ || faulty_ || stopped_[device]) return;
    EngineStats stats = sim_.engine(device).stats();
    uint64_t staying = stats.gap_bytes + (bytes + (2u << 20) - 1) / (2u << 20) * (2u << 20);
    for (const PinnedBytes& pinned : stats.pinned) staying += pinned.bytes;
    if (staying <= stats.budget_bytes)
      fail("out of memory with " + std::to_string(staying) + " of " +
           std::to_string(stats.budget_bytes) + " needed: " + error.text);
  }

  // The program's own duty: order this stream after the block's last use.
  void order(ModelBlock& block, CUstream stream) {
    if (block.last != stream) {
      Driver::ContextGuard context(sim_.driver(), sim_.context(block.device));
      CUevent event = nullptr;
      if (sim_.driver().event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS ||
          sim_.driver().event_record(event, block.last) != CUDA_SUCCESS ||
          sim_.driver().stream_wait_event(stream, event, 0) != CUDA_SUCCESS ||
          sim_.driver().event_destroy(event) != CUDA_SUCCESS)
        fail("event");
    }
    block.last = stream;
    block.used_on.insert(stream);
  }

  void write(ModelBlock& block, CUstream stream) {
    order(block, stream);
    Engine& engine = sim_.engine(block.device);
    Result<Hold> hold = engine.touch(block.address, stream, Access::write);
    if (!hold) {
      expect_no_room(block.device, block.bytes, hold.error());
      return;
    }
    block.touched = true;
    block.pattern = random_() | 1;
    if (!sim_.fill(block.device, block.address, block.bytes, block.pattern, stream))
      fail("launch");
    engine.release(*hold, stream);
    after_operator();
  }

  void read(const std::vector<size_t>& chosen, CUstream stream) {
    std::vector<std::pair<Engine*, Hold>> holds;
    bool all = true;
    for (size_t i : chosen) {
      ModelBlock& block = blocks_[i];
      order(block, stream);
      Engine& engine = sim_.engine(block.device);
      Result<Hold> hold = engine.touch(block.address, stream, Access::read);
      if (!hold) {
        expect_no_room(block.device, block.bytes, hold.error());
        all = false;
        break;
      }
      block.touched = true;
      holds.push_back({&engine, *hold});
    }
    if (all)
      for (size_t i : chosen)
        if (blocks_[i].pattern &&
            !sim_.verify(blocks_[i].device, blocks_[i].address, blocks_[i].bytes,
                         blocks_[i].pattern, stream))
          fail("launch");
    for (auto& [engine, hold] : holds) engine->release(hold, stream);
    after_operator();
  }

  void after_operator() {
    if (options_.adversarial)
      for (int d = 0; d < options_.devices; ++d) sim_.engine(d).spill_all();
  }

  void use(bool writing) {
    if (blocks_.empty()) return;
    size_t first = below(blocks_.size());
    int device = blocks_[first].device;
    CUstream stream = streams_[device][below(3)];
    if (writing) {
      write(blocks_[first], stream);
      return;
    }
    std::vector<size_t> chosen{first};
    for (unsigned i = 0; i < below(3); ++i) {
      size_t other = below(blocks_.size());
      if (blocks_[other].device == device &&
          std::find(chosen.begin(), chosen.end(), other) == chosen.end())
        chosen.push_back(other);
    }
    read(chosen, stream);
  }

  void release_one() {
    if (blocks_.size() <= kept_) return;
    free_at(kept_ + below(blocks_.size() - kept_));
  }

  void free_at(size_t index) {
    ModelBlock block = blocks_[index];
    blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(index));
    Engine& engine = sim_.engine(block.device);
    for (CUstream stream : block.used_on)
      if (stream != block.home) must(engine.record_stream(block.address, stream), "record_stream");
    if (below(8) == 0) {  // freed while an operator still holds it
      Result<Hold> hold = engine.touch(block.address, block.home, Access::read);
      if (hold) {
        must(engine.free(block.address), "free");
        engine.release(*hold, block.home);
        return;
      }
    }
    must(engine.free(block.address), "free");
    if (engine.free(block.address)) fail("a second free passed");
  }

  void hint() {
    if (blocks_.empty()) return;
    ModelBlock& block = blocks_[below(blocks_.size())];
    Engine& engine = sim_.engine(block.device);
    switch (below(4)) {
      case 0:
        must(engine.cold(block.address, block.bytes), "cold");
        if (blocks_.size() % 3 == 0) use_on_host(block);
        break;
      case 1:  // (Now and then both hints at one place: no number is drawn for it.)
        if (blocks_.size() % 4 == 0)
          must(engine.cold(block.address, block.bytes, block.home), "cold");
        must(engine.prefetch(block.address, block.bytes, block.home), "prefetch");
        if (blocks_.size() % 4 == 1)
          must(engine.cold(block.address, block.bytes, block.home), "cold");
        break;
      case 2:
        if (!block.pinned) {
          Result<void> pinned = engine.pin(block.address, "by the test");
          if (pinned) block.pinned = true;
          else expect_no_room(block.device, block.bytes, pinned.error());
        }
        break;
      case 3:
        if (block.pinned) {
          must(engine.unpin(block.address), "unpin");
          block.pinned = false;
        } else {
          use_on_host(block);
        }
        break;
    }
  }

  /// By the processor, which compares all of it and writes it anew, or not. (No number is drawn.)
  void use_on_host(ModelBlock& block) {
    Engine& engine = sim_.engine(block.device);
    const bool writes = block.bytes % 3 != 0;
    Result<OnHost> there =
        engine.on_host(block.address, writes ? Access::write : Access::read);
    if (!there) {
      const Code code = there.error().code;
      const bool leaves = block.bytes >= (1u << 20) && block.touched && !block.pinned &&
                          !stopped_[block.device];
      if (code == Code::invalid_argument ? leaves && !options_.places
                                         : code != Code::host_out_of_memory && !faulty_)
        fail("use in host memory: " + describe(there.error()));
      return;
    }
    ++used_on_host;
    if (block.pattern) Simulation::verify(*there, block.bytes, block.pattern);
    if (writes) {
      block.pattern = block.pattern * 31 + 1;
      Simulation::fill(*there, block.bytes, block.pattern);
    }
    engine.check();
    if (block.bytes % 5 == 0) engine.pump();
    must(engine.end_on_host(there->name), "end_on_host");
  }

  void rare() {
    const int device = any_device();
    Engine& engine = sim_.engine(device);
    switch (below(5)) {
      case 4:
        engine.stop_spilling(stopped_[device] = !stopped_[device]);
        evictions_[device] = engine.stats().evictions;
        break;
      case 0: engine.trim(); break;
      case 1: engine.spill_all(); break;
      case 2: sim_.synchronize(); break;
      case 3: {
        int inside = 0;
        if (engine.free(&inside)) fail("a foreign pointer was freed");
        break;
      }
    }
  }

  void expect_budget() {
    for (int d = 0; d < options_.devices; ++d)
      if (uint64_t peak = sim_.counts(d).frame_bytes_peak; peak > options_.budget_bytes)
        fail("device " + std::to_string(d) + " held " + std::to_string(peak) + " bytes of frames");
  }

  void expect_nothing_leaves() {
    for (int d = 0; d < options_.devices; ++d)
      if (stopped_[d] && sim_.engine(d).stats().evictions != evictions_[d])
        fail("a block was evicted while spilling was stopped");
  }

  void finish() {
    for (int d = 0; d < options_.devices; ++d) sim_.engine(d).stop_spilling(stopped_[d] = false);
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].pinned)
        must(sim_.engine(blocks_[i].device).unpin(blocks_[i].address), "unpin");
      read({i}, blocks_[i].home);
    }
    sim_.synchronize();
    if (sim_.wrong_bytes) fail("wrong bytes at the end: " + sim_.first_wrong);
    while (!blocks_.empty()) free_at(blocks_.size() - 1);
    for (int d = 0; d < options_.devices; ++d) {
      Engine& engine = sim_.engine(d);
      engine.trim();
      for (int i = 0; i < 10'000 && (engine.pump() || engine.busy()); ++i)
        sim_.clock().wait(1'000'000);
      engine.check();
      EngineStats stats = engine.stats();
      if (stats.allocated_bytes != 0) fail("allocated bytes left");
      if (stats.lost_blocks != 0) fail("a block was lost");
      if (sim_.counts(d).frame_bytes != 0)
        fail("frames left: " + std::to_string(sim_.counts(d).frame_bytes));
      if (stats.host_used_bytes != 0)
        fail("staging left: " + std::to_string(stats.host_used_bytes));
    }
    if (sim_.store() && sim_.store()->stats().slots_in_use != 0) fail("slots left");
  }

  std::map<int, bool> stopped_;
  std::map<int, uint64_t> evictions_;
  std::mt19937_64 random_;
  const uint64_t seed_;
  size_t kept_ = 0;  // the first blocks, which release_one() leaves alone
  bool faulty_ = false, full_ = false;
  SimulationOptions options_;
  Simulation sim_;
  std::map<int, std::vector<CUstream>> streams_;
  std::vector<ModelBlock> blocks_;
};

bool run_seed(uint64_t seed, const char* program) {
  try {
    World world(seed);
    world.run();
    return true;
  } catch (const Failure& failure) {
    std::printf("seed %llu: %s\n  replay: FIRN_TEST_GPU=%s %s %llu\n", (unsigned long long)seed,
                failure.what.c_str(), std::getenv("FIRN_TEST_GPU"), program,
                (unsigned long long)seed);
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return run_seed(std::strtoull(argv[1], nullptr, 0), argv[0]) ? 0 : 1;
  const char* wanted = std::getenv("FIRN_SEEDS");
  uint64_t seeds = wanted ? std::strtoull(wanted, nullptr, 0) : 240, failed = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    std::fflush(stdout);
    if (!run_seed(seed, argv[0])) ++failed;
    if (failed == 5) break;
  }
  if (seeds >= 50 && failed == 0 && World::periods_found == 0) {
    std::printf("no period was ever found\n");
    failed = 1;
  }
  if (seeds >= 50 && failed == 0 && World::used_on_host == 0) {
    std::printf("no block was ever used in host memory\n");
    failed = 1;
  }
  std::printf("%llu uses in host memory\n", (unsigned long long)World::used_on_host);
  std::printf("%llu seeds, %llu failed\n", (unsigned long long)seeds, (unsigned long long)failed);
  return failed ? 1 : 0;
}
