#include "allocator/runtime/open_options.h"

#include <algorithm>

#include "allocator/runtime/rank_dirs.h"
#include "allocator/runtime/ranks.h"
#include "firn/clock.h"

namespace firn {

namespace {

/// Memory left for others: contexts, lazily loaded modules, libraries' workspaces. They are as
/// large on a small card: a fraction is not enough there, and a fixed size would be all of a very
/// small one. So 1 GiB or a 25th below 48 GB, at most a 16th of what there is; else a 50th.
uint64_t margin_bytes(uint64_t total_bytes) {
  constexpr uint64_t GiB = uint64_t{1} << 30, small_card_bytes = 48'000'000'000;
  if (total_bytes >= small_card_bytes) return total_bytes / 50;
  return std::min(std::max(total_bytes / 25, GiB), total_bytes / 16);
}

}  // namespace

StoreOptions store_options(const Config& config, const Driver& driver) {
  StoreOptions options;
  options.dirs = config.dirs;
  const LocalRank who = local_rank();
  if (config.spread == "own" && who.ranks > 1 && config.dirs.size() > 1)
    options.own_dirs = dirs_of_rank(who, config.dirs.size(),
                                    rank_distances(who.ranks, config.dirs, driver));
  options.depth = config.depth;
  options.allow_tmpfs = config.allow_tmpfs;
  options.encrypt = config.encrypt;
  options.pace = {static_cast<double>(config.store_read_bytes_s),
                  static_cast<double>(config.store_write_bytes_s), config.store_latency_ns};
  options.clock = &wall_clock();
  if (config.store_bytes) options.max_bytes_per_dir = config.store_bytes;
  if (config.store == "io_uring") options.kind = StoreOptions::Kind::io_uring;
  if (config.store == "threads") options.kind = StoreOptions::Kind::threads;
  return options;
}

EngineOptions engine_options(const Config& config) {
  EngineOptions options;
  options.served = true;
  options.host_bytes = config.host_bytes;
  options.piece_bytes = config.piece_bytes;
  options.watch_fraction = config.watch_fraction;
  options.spare_fraction = config.spare_fraction;
  options.io_patience_ns = config.io_patience_ns;
  options.adversarial = config.adversarial;
  options.sums = config.verify != "off";
  options.verify = config.verify == "all";
  options.guard = config.guard;
  options.poison = config.poison;
  options.places = config.places;
  options.copy_gate = config.copy_gate;
  options.notices = true;
  options.host_ahead = true;
  if (config.policy == "lifetime") options.policy = Policy::lifetime;
  return options;
}

uint64_t default_budget(uint64_t free_bytes, uint64_t total_bytes) {
  const uint64_t margin = margin_bytes(total_bytes);
  return free_bytes > margin ? free_bytes - margin : free_bytes;
}

}  // namespace firn
