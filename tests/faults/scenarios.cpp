// What the job does: together they meet every way in which the engine calls the driver.
#include "tests/faults/scenarios.h"

#include "allocator/memory/exported_memory.h"

namespace firn::faults {

namespace {

sim::Options machine_of(uint64_t budget, Policy policy) {
  sim::Options o;
  o.streams = 2;
  o.engine.budget_bytes = budget;
  o.engine.host_bytes = 16 * MiB;
  o.engine.piece_bytes = 2 * MiB;
  o.engine.span_bytes = 2 * MiB;  // parts of a block come and go
  o.engine.watch_fraction = 0;
  o.engine.no_bytes = true;
  o.engine.policy = policy;
  o.gpu_bytes = budget + 64 * MiB;
  o.store.seed = 1;
  return o;
}

/// Twice the budget: what is used least lately leaves and comes back; two streams.
sim::Options age_machine() { return machine_of(10 * MiB, Policy::age); }
void age(Job& job) {
  const CUstream other = job.stream(0);
  std::vector<JobBlock*> blocks;
  for (uint64_t i = 0; i < 5; ++i) {
    blocks.push_back(job.make((2u << 20) + i * 700'000));
    job.write(blocks.back());
    job.pump();
  }
  for (JobBlock* block : blocks) job.read(block);
  job.write(blocks.front());
  job.asks("spill_all", [&] { job.engine().spill_all(); });
  for (JobBlock* block : blocks) job.read(block, block == blocks[2] ? other : nullptr);
  job.drop(blocks[1]);
  job.drop(blocks[2]);
  job.drop(job.make(1000));
  job.asks("trim", [&] { job.engine().trim(); });
}

/// Iterations whose period is found: what comes next is known, written and fetched ahead.
sim::Options lifetimes_machine() { return machine_of(10 * MiB, Policy::lifetime); }
void lifetimes(Job& job) {
  for (int round = 0; round < 6; ++round) {
    std::vector<JobBlock*> blocks;
    for (int i = 0; i < 5; ++i) {
      blocks.push_back(job.make(3 * MiB));
      job.write(blocks.back());
      (void)job.machine().gpu().busy(nullptr, 1'000'000);
      job.pump();
    }
    for (size_t i = blocks.size(); i-- > 0;) {
      job.read(blocks[i]);
      (void)job.machine().gpu().busy(nullptr, 1'000'000);
      job.asks("time passes", [&] { job.machine().clock().wait(1'000'000); });
      job.drop(blocks[i]);
      job.pump();
    }
  }
}

/// Memory that others map, or whose addresses they have, beside what has to leave for it.
sim::Options exports_machine() { return machine_of(16 * MiB, Policy::age); }
void exports(Job& job) {
  Engine& engine = job.engine();
  const CUstream other = job.stream(0);
  JobBlock* shown = job.make(3 * MiB);
  job.write(shown);
  std::shared_ptr<const ExportedMemory> exported;
  if (shown)
    if (auto made =
            job.does("export", [&] { return engine.export_memory(shown->address, "shown"); }))
      exported = *made;
  if (exported) {
    Driver::ContextGuard context(job.machine().driver(), job.machine().context(0));
    auto imported = job.does("import", [&] {
      return ImportedMemory::open(job.machine().driver(), 0, exported->handle());
    });
    if (imported) job.asks("the import's end", [&] { imported->reset(); });
  }
  JobBlock *held = job.make(2 * MiB + 100'000, 0, other), *given = job.make(1'300'000);
  job.write(held, other);
  job.write(given);
  if (given)
    (void)job.does("give_address", [&] { return engine.give_address(given->address, "given"); });
  const bool pinned =
      held && job.does("pin", [&] { return engine.pin(held->address, "held"); });
  Hold apart;
  if (held) job.asks("hold_apart", [&] { apart = engine.hold_apart(held->address); });
  std::vector<JobBlock*> rest;
  for (int i = 0; i < 4; ++i) {
    rest.push_back(job.make(3 * MiB));
    job.write(rest.back());
    job.pump();
  }
  if (apart.block) job.asks("release_apart", [&] { engine.release_apart(apart); });
  if (pinned) (void)job.does("unpin", [&] { return engine.unpin(held->address); });
  for (JobBlock* block : rest) job.read(block);
  job.read(held, other);
  job.read(given);
  exported.reset();
  job.drop(shown);
  for (JobBlock* block : rest) job.drop(block);
}

/// Two devices that use each other's memory, and all that a program asks of an engine as a whole.
sim::Options requests_machine() {
  sim::Options o = machine_of(12 * MiB, Policy::age);
  o.devices = 2;
  o.engine.host_bytes = 6 * MiB;
  return o;
}
void requests(Job& job) {
  std::vector<JobBlock*> blocks;
  for (int device = 0; device < 2; ++device) {
    (void)job.does("allow_peer", [&] { return job.engine(device).allow_peer(1 - device); });
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(job.make(3 * MiB, device, i % 2 ? job.stream(device) : nullptr));
      job.write(blocks.back(), i % 2 ? job.stream(device) : nullptr);
      job.pump(device);
    }
  }
  for (JobBlock* block : blocks)
    if (block && block->id % 3 == 0)
      (void)job.does("cold", [&] {
        return job.engine(block->device).cold(block->address, block->bytes);
      });
  for (int device = 0; device < 2; ++device) {
    Engine& engine = job.engine(device);
    const size_t first = 4 * static_cast<size_t>(device);
    job.asks("spill_all", [&] { engine.spill_all(); });
    for (JobBlock* block : {blocks[first], blocks[first + 1]})
      if (block)
        (void)job.does("prefetch", [&] {
          return engine.prefetch(block->address, block->bytes, block->home);
        });
    job.pump(device);
    (void)job.does("set_budget", [&] { return engine.set_budget(8 * MiB); });
    job.read(blocks[first + 2]);
    job.asks("give_way", [&] { (void)engine.give_way(2 * MiB, 20'000'000); });
    (void)job.does("set_budget", [&] { return engine.set_budget(12 * MiB); });
    job.asks("spill_away", [&] { engine.spill_away(); });
    job.asks("trim", [&] { engine.trim(); });
    job.read(blocks[first + 3]);
    job.asks("spill_all", [&] { engine.spill_all(); });
    job.drop(blocks[first]);
  }
}

/// What has no room is used in host memory; blocks that share frames; blocks in planned places.
sim::Options places_machine() {
  sim::Options o = machine_of(12 * MiB, Policy::lifetime);
  o.engine.places = true;
  return o;
}
void places(Job& job) {
  Engine& engine = job.engine();
  std::vector<JobBlock*> kept;
  for (const size_t bytes : {1'200'000u, 1'900'000u, 2'300'000u, 1'100'000u}) {  // in shared frames
    kept.push_back(job.make(bytes));
    job.write(kept.back());
  }
  for (int round = 0; round < 6; ++round) {
    JobBlock* long_lived = job.make(3 * MiB + 200'000);
    job.write(long_lived);
    for (int i = 0; i < 2; ++i) {  // for a moment only
      JobBlock* brief = job.make(MiB + static_cast<size_t>(i) * 400'000);
      job.write(brief);
      job.drop(brief);
    }
    job.pump();
    for (JobBlock* block : kept) job.read(block);
    job.read(long_lived);
    job.drop(long_lived);
    job.pump();
  }
  // Held, so that nothing can leave, while another is used that has gone.
  JobBlock* away = job.make(4 * MiB);
  job.write(away);
  if (away) (void)job.does("cold", [&] { return engine.cold(away->address, away->bytes); });
  job.pump();
  std::vector<Hold> holds;
  for (JobBlock* block : kept)
    if (block)
      if (auto hold = job.does("touch", [&] {
            return engine.touch(block->address, nullptr, Access::read);
          }))
        holds.push_back(*hold);
  job.read(away, nullptr, true);
  job.write(away, nullptr, true);
  for (const Hold& hold : holds) job.asks("release", [&] { engine.release(hold, nullptr); });
  job.drop(kept[2]);
}

std::string none_of(std::initializer_list<std::pair<const char*, uint64_t>> figures) {
  std::string missing;
  for (const auto& [name, value] : figures)
    if (value == 0) missing += std::string(" ") + name;
  return missing;
}
std::string moves_missing(Job& job) {
  const EngineStats stats = job.engine().stats();
  return none_of({{"evictions", stats.evictions},
                  {"faults", stats.faults},
                  {"written", stats.store_written_bytes},
                  {"read", stats.store_read_bytes}});
}
std::string lifetimes_missing(Job& job) {
  const EngineStats stats = job.engine().stats();
  return none_of({{"evictions", stats.evictions},
                  {"period", stats.period_found},
                  {"prefetched", stats.prefetched_bytes}});
}
std::string exports_missing(Job& job) {
  const EngineStats stats = job.engine().stats();
  return none_of({{"evictions", stats.evictions}, {"pinned", stats.pinned.size()}});
}
std::string requests_missing(Job& job) {
  const EngineStats other = job.engine(1).stats();
  return moves_missing(job) + none_of({{"prefetched", other.prefetched_bytes},
                                       {"evictions", other.evictions}});
}
std::string places_missing(Job& job) {
  const EngineStats stats = job.engine().stats();
  return none_of({{"placed", stats.placed},
                  {"zero_copy", stats.zero_copy_touches},
                  {"shared", stats.gap_bytes}});
}

}  // namespace

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"age", age_machine, age, moves_missing},
      {"lifetimes", lifetimes_machine, lifetimes, lifetimes_missing},
      {"exports", exports_machine, exports, exports_missing},
      {"requests", requests_machine, requests, requests_missing},
      {"places", places_machine, places, places_missing}};
  return all;
}

}  // namespace firn::faults
