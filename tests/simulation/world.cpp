// The seed's frame: its machine, its threads, its end.
#include "tests/simulation/world.h"

#include <unistd.h>

#include <cstring>

#include <fmt/format.h>

namespace firn::sim {

namespace {
// No call takes longer than this on the virtual clock. (The engine waits up to two minutes for work
// that may itself wait for this process.)
constexpr uint64_t call_ns_most = 130'000'000'000;
constexpr uint64_t waits_most = 4'000'000;
thread_local uint64_t operation_began_ns = 0, operation_waits = 0;
}  // namespace

World::World(const Options& options, Report& report, Words& words, std::vector<bool> skip,
             std::FILE* history, bool log_events)
    : options_(options), report_(report), words_(words), skip_(std::move(skip)), history_(history) {
  const auto devices = static_cast<size_t>(options.devices);
  live_bytes_.resize(devices);
  stopped_.resize(devices);
  evictions_.resize(devices);
  within_.resize(devices);
  fence_given_.resize(devices);
  lost_seen_.resize(devices);
  machine_ = std::make_unique<Machine>(options, [this] { return may_wait(); });
  for (int device = 0; options.recipes && device < options.devices; ++device) {
    recipes_.push_back(std::make_unique<ProgramRemaker>(*this, device, options.seed));
    if (machine_->open(device)) machine_->engine(device).remake_with(recipes_.back().get());
  }
  if (log_events) machine_->events().log_to(history_);
  if (!machine_->error.empty()) fail("open", machine_->error);
  if (options.refuses_host) {  // for good: staging is pageable memory
    machine_->gpu().fail_from("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
    was_ill_ = true;
  }
  if (options.refused_copies > 0) {
    machine_->gpu().fail_rate("cuMemcpyHtoDAsync", options.refused_copies, options.seed, 999);
    driver_ill_ = was_ill_ = true;
    ill_until_ = UINT64_MAX;
  }
  if (options.threads > 1) {
    turns_ = std::make_unique<Turns>(options.threads, options.seed);
    machine_->events().may_switch = [this] { may_switch(); };
  }
  for (int device = 0; device < options.devices; ++device) {
    streams_.emplace_back();
    for (unsigned i = 0; i < options.streams; ++i)
      streams_.back().push_back(i == 0 ? nullptr : machine_->make_stream(device));
    fences_.push_back(machine_->make_stream(device));
  }
}

/// The last words of the process.
void World::fail(const char* oracle, const std::string& text) {
  words_.operation = done_;
  words_.hash = machine_ ? machine_->events().hash() : 0;
  std::snprintf(words_.text, sizeof words_.text, "%s", text.c_str());
  std::snprintf(words_.oracle, sizeof words_.oracle, "%s", oracle);
  if (history_) std::fflush(history_);
  ::_exit(1);
}

void World::tell(const char* what, const ModelBlock& block, unsigned stream) const {
  if (history_)
    std::fprintf(history_, "  %s block %u version %u (device %d, %p, %zu bytes) stream %u\n", what,
                 block.id, block.version, block.device, block.address, block.bytes, stream);
}

/// An engine is about to wait: is it within its time? Then time goes on, or another thread does.
bool World::may_wait() {
  const uint64_t now = machine_->gpu().now();
  if (++operation_waits > waits_most || now - operation_began_ns > call_ns_most)
    fail("time", fmt::format("a call has not returned for {} ms and {} waits",
                             (now - operation_began_ns) / 1'000'000, operation_waits));
  if (options_.engine.host_ahead && !ended_)  // the thread that pins goes on meanwhile
    for (int device = 0; device < options_.devices; ++device)
      if (machine_->open(device) && machine_->engine(device).host_due())
        (void)machine_->engine(device).prepare_host();
  if (!turns_ || ended_) return true;
  if (!turns_->yield()) return true;
  met(Probe::threads_waited);
  return false;
}

/// An engine maps or unmaps, mostly without its lock: others may come in between.
void World::may_switch() {
  if (!turns_ || ended_) return;
  for (int device = 0; device < options_.devices; ++device)
    if (!machine_->open(device) || !inspector(device).unlocked()) return;
  if (turns_->yield()) met(Probe::threads_in_calls);
}

void World::step_began() {
  operation_began_ns = machine_->gpu().now();
  operation_waits = 0;
  operation_illnesses = illnesses_ - (driver_ill_ ? 1 : 0);
}

void World::step(uint64_t number) {
  Draw draw = Draw::of(options_.seed,
                       options_.period ? number % options_.period + 1'000'000'007 : number);
  if (driver_ill_ && number >= ill_until_) end_injections();
  if (options_.period && number % options_.period == 0 && number > 0) end_iteration(draw);
  uint64_t chosen = draw.below(options_.weights);
  unsigned what = 0;
  while (chosen >= options_.weight[what]) chosen -= options_.weight[what++];
  if (what == static_cast<unsigned>(Do::inject)) draw = Draw::of(options_.seed + 1, number);
  if (history_)
    std::fprintf(history_, "%llu %s\n", static_cast<unsigned long long>(number), do_names[what]);
  step_began();
  operate(draw, static_cast<Do>(what), number);
}

void World::run() {
  const auto program = [this](unsigned me) {
    if (turns_) turns_->begin(me);
    for (uint64_t i = me; i < options_.operations && !ended_; i += options_.threads) {
      done_ = i;
      words_.operation = i;
      if (i >= options_.close_at) {
        Draw draw = Draw::of(options_.seed, ~i);
        close_now(draw);
        break;
      }
      if (i < skip_.size() && skip_[i]) continue;
      step(i);
      if (ended_) break;
      after(i);
      if (turns_) (void)turns_->yield();
    }
    if (turns_) turns_->end();
  };
  if (options_.threads == 1) {
    program(0);
  } else {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < options_.threads; ++i) threads.emplace_back(program, i);
    for (std::thread& thread : threads) thread.join();
  }
  if (!ended_) finish();
  count_faults();
  count_probes();
  words_.hash = machine_->events().hash();
  step_began();
  ended_ = true;
  delete machine_.get();  // whose engines may wait in their ends: may_wait() asks it for the time
  (void)machine_.release();
  report_.operations += std::min<uint64_t>(options_.close_at, options_.operations);
  for (unsigned i = 0; i < probe_count; ++i) {
    report_.probes[i] += probes_[i];
    report_.probe_seeds[i] += probes_[i] > 0;
  }
  for (unsigned i = 0; i < fault_count; ++i) report_.faults[i] += faults_[i];
}

}  // namespace firn::sim
