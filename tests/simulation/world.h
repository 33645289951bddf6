// A seed's life: a random program against the engines, and what has to hold after each step.
// The model knows, per block, which version was written last.
//
// Steps draw from the seed and their own number, so that some can be left out and the others stay
// what they were. Whatever fails ends the process, with the oracle's name in `words`.
#pragma once

#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tests/simulation/draw.h"
#include "tests/simulation/inspector.h"
#include "tests/simulation/machine.h"
#include "tests/simulation/options.h"
#include "tests/simulation/recipes.h"
#include "tests/simulation/report.h"
#include "tests/simulation/turns.h"

namespace firn::sim {

struct ModelBlock {
  void* address = nullptr;
  size_t bytes = 0;
  uint32_t id = 0;
  uint32_t version = 0;  // written last, by work that is enqueued; 0: never
  int device = 0;
  unsigned home = 0, last = 0;  // streams: of its allocation, of its last use
  CUstream home_stream = nullptr;  // as it was then
  uint32_t used_on = 0;  // a bit for each stream
  bool pinned = false, given = false, lost = false;
  int state = 0;         // as it was seen last, and how many pieces were in host memory beside the
  unsigned host_pieces = 0;  // device then
  unsigned busy = 0;     // operations of threads that use it
  bool large() const { return bytes >= 1u << 20; }
};

/// A block that a thread's operation uses: others leave it alone meanwhile.
class Using {
 public:
  explicit Using(ModelBlock& block) : block_(&block) { ++block_->busy; }
  Using(Using&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Using& operator=(Using&&) = delete;
  ~Using() {
    if (block_) --block_->busy;
  }

 private:
  ModelBlock* block_;
};

class World {
 public:
  /// `skip`: numbers of operations that are left out.
  World(const Options& options, Report& report, Words& words, std::vector<bool> skip,
        std::FILE* history, bool log_events = false);
  void run();

 private:
  [[noreturn]] void fail(const char* oracle, const std::string& text);
  /// To the history: `what` happens to the block.
  void tell(const char* what, const ModelBlock& block, unsigned stream) const;
  void met(Probe probe, uint64_t times = 1) { probes_[static_cast<unsigned>(probe)] += times; }
  void met(Fault fault, uint64_t times = 1) { faults_[static_cast<unsigned>(fault)] += times; }
  bool may_wait();
  void may_switch();
  void step_began();

  // operations.cpp: the program.
  void step(uint64_t number);
  void operate(Draw& draw, Do what, uint64_t number);
  void allocate(Draw& draw, int device, size_t bytes);
  bool write(Draw& draw, ModelBlock& block, unsigned stream);
  bool has_tags(const ModelBlock& block);
  bool launch(const ModelBlock& block, uint32_t version, bool writes, unsigned stream);
  void read(std::vector<ModelBlock*> blocks, unsigned stream, bool anyway);
  void copy(Draw& draw);
  void release(Draw& draw, size_t index, bool held);
  void release_behind(Draw& draw, size_t index);
  void layer(Draw& draw, uint64_t place);
  void end_iteration(Draw& draw);
  void touch_many(Draw& draw);
  void hint(Draw& draw, Do what);
  void use_on_host(ModelBlock& block);
  void control(Draw& draw, Do what);
  void press_host(Draw& draw, Engine& engine);
  void change_streams(Draw& draw, Do what);
  ModelBlock* any(Draw& draw);
  size_t draw_bytes(Draw& draw);
  bool order(ModelBlock& block, unsigned stream);
  bool make_wait(int device, CUstream stream, CUstream behind);
  CUstream stream(int device, unsigned index) const {
    return streams_[static_cast<size_t>(device)][index];
  }
  void refused(int device, size_t bytes, const Error& error, ModelBlock* block);
  int any_device(Draw& draw) {
    return static_cast<int>(draw.below(static_cast<uint64_t>(options_.devices)));
  }

  // recipes.cpp
  friend class ProgramRemaker;
  void recipe(Draw& draw, Do what);
  void run_operator(Draw& draw, ModelBlock& output, const std::vector<ModelBlock*>& inputs,
                    unsigned stream);
  Run::Named named(const ModelBlock& block);
  bool enqueue(const Run& run, int device, CUstream stream);
  void made(const Run& run);
  void wrong(const char* oracle, const std::string& words);
  void let_others_go_on();
  void look_at_way_back(int device, const EngineInspector::WayBack& way, unsigned depth);

  // faults.cpp
  void inject(Draw& draw);
  void end_injections();
  void count_faults();
  bool excused(int device) const;

  // oracles.cpp
  void look_at(ModelBlock& block);
  void look_at_all();
  void look_at_faulting();
  void after(uint64_t number);
  void finish();
  void expect_budget(int device);
  void expect_nothing_left();
  void close_now(Draw& draw);
  void count_probes();
  EngineInspector inspector(int device) {
    return EngineInspector(machine_->engine(device), *machine_, device);
  }

  const Options& options_;
  Report& report_;
  Words& words_;
  const std::vector<bool> skip_;
  std::FILE* const history_;
  std::vector<std::unique_ptr<ProgramRemaker>> recipes_;  // by device; the engines call them
  uint64_t next_recipe_ = 1;
  std::unique_ptr<Machine> machine_;
  std::unique_ptr<Turns> turns_;
  std::vector<std::vector<CUstream>> streams_;  // by device
  std::vector<CUstream> fences_;                // for free_behind(): nothing else runs there
  std::vector<uint64_t> fence_given_;
  std::vector<std::unique_ptr<ModelBlock>> blocks_;
  std::vector<uint64_t> live_bytes_;            // by device
  std::vector<bool> stopped_;
  std::vector<uint64_t> evictions_;
  std::vector<bool> within_;   // the budget of now, since it was set
  uint32_t next_id_ = 1;
  size_t kept_ = 0;            // the first blocks, that stay for all iterations
  bool driver_ill_ = false;    // an injected error of the driver's may still be met
  bool was_ill_ = false;       // or was
  uint64_t ill_until_ = 0;     // operation at which it ends
  unsigned illnesses_ = 0;     // so many times
  static inline thread_local unsigned operation_illnesses = 0;  // that were over when it began
  bool dead_ = false;
  bool short_ = false;         // the budget is below what it was, or the store was full
  bool ended_ = false;
  bool counted_ = false;       // what the engines met, before they ended
  bool well_ = false;          // faults are over for good, and the budget is whole again
  uint64_t done_ = 0;          // operations
  uint64_t began_ns_ = 0;      // of the operation under way
  uint64_t waits_ = 0;
  std::vector<uint64_t> lost_seen_;
  using SegmentName = std::pair<int, uint64_t>;  // its device, and its number among addresses
  static SegmentName segment_of(const ModelBlock& small) {
    return {small.device, reinterpret_cast<uint64_t>(small.address) / granule_bytes};
  }
  std::set<SegmentName> lost_segments_;
  uint64_t probes_[probe_count]{}, faults_[fault_count]{};
};

}  // namespace firn::sim
