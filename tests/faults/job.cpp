#include "tests/faults/job.h"

#include <fmt/format.h>

namespace firn::faults {

namespace {
constexpr uint64_t second = 1'000'000'000;
constexpr uint64_t waits_most = 1'000'000;  // in which the clock may stand still
}  // namespace

Job::Job(const sim::Options& options) : options_(options) {
  machine_ = std::make_unique<sim::Machine>(options_, [this] {
    if (on_wait) on_wait();
    if (!machine_) return true;
    const uint64_t ns = machine_->gpu().now() - begin_ns_;
    if (ns > second || ++waits_ > waits_most)
      wrong(fmt::format("no answer within a second ({} ms, {} waits): {}", ns / 1'000'000, waits_,
                        what_));
    return true;
  });
  if (!opened()) return;
  for (int device = 0; device < options_.devices; ++device)
    streams_.push_back(machine_->make_stream(device));
}

bool Job::dead(int device) {
  return EngineInspector(engine(device), *machine_, device).dead();
}

void Job::watch(const char* what) {
  what_ = what;
  begin_ns_ = machine_->gpu().now();
  waits_ = 0;
}

void Job::failed(const char* what, const Error& error) {
  if (errors++ == 0) first_error = what + (": " + describe(error));
  // Whose words: the driver's; or that memory is short, of which its refusals are one reason.
  const bool clean = error.code == Code::out_of_memory ||
                     (error.code == Code::driver && error.text.find("CUDA_") != std::string::npos);
  if (!clean || error.text.empty()) wrong(fmt::format("{} answers: {}", what, describe(error)));
}

void Job::look(const char* what) {
  if (!machine_->wrong_oracle.empty())
    wrong(fmt::format("after {}: {}: {}", what, machine_->wrong_oracle, machine_->wrong));
  for (const auto& block : blocks_) {
    if (!machine_->open(block->device) || dead(block->device)) continue;
    EngineInspector::Seen seen;
    const auto found = EngineInspector(engine(block->device), *machine_, block->device)
                           .look(block->address, block->bytes, block->id,
                                 machine_->version_done[block->id], seen);
    if (found.oracle) wrong(fmt::format("after {}: {}: {}", what, found.oracle, found.words));
    if (seen.lost) wrong(fmt::format("after {}: block {} is lost", what, block->id));
  }
}

JobBlock* Job::make(size_t bytes, int device, CUstream stream) {
  auto made = does("allocate", [&] { return engine(device).allocate(bytes, stream); });
  if (!made) return nullptr;
  auto block = std::make_unique<JobBlock>();
  block->address = *made;
  block->bytes = bytes;
  block->id = next_id_++;
  block->device = device;
  block->home = block->last = stream;
  machine_->version_done.resize(next_id_ + 1);
  blocks_.push_back(std::move(block));
  return blocks_.back().get();
}

/// The program's own duty: this stream comes after the block's last use.
bool Job::order(JobBlock& block, CUstream stream) {
  if (block.last == stream) return true;
  Driver& driver = machine_->driver();
  Driver::ContextGuard context(driver, machine_->context(block.device));
  CUevent event = nullptr;
  if (driver.event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return false;
  const bool ordered = driver.event_record(event, block.last) == CUDA_SUCCESS &&
                       driver.stream_wait_event(stream, event, 0) == CUDA_SUCCESS;
  if (driver.event_destroy(event) != CUDA_SUCCESS) events_.push_back(event);
  return ordered;
}

bool Job::use(JobBlock& block, CUstream stream, bool writes, bool anyway) {
  if (!order(block, stream)) return false;
  Engine& engine = machine_->engine(block.device);
  const Access access = writes ? Access::write : Access::read;
  auto hold = does(anyway ? "touch_anyway" : "touch", [&] {
    return anyway ? engine.touch_anyway(block.address, stream, access)
                  : engine.touch(block.address, stream, access);
  });
  if (!hold) return false;
  bool launched = true;
  if (block.large()) {
    const auto part = EngineInspector(engine, *machine_, block.device)
                          .tagged(block.address, block.bytes);
    const auto* at = reinterpret_cast<const void*>(part.address);
    if (writes)
      launched = machine_->write(block.device, at, part.bytes, block.id, block.version + 1, stream);
    else if (block.version)
      launched = machine_->compare(block.device, at, part.bytes, block.id, block.version, stream);
    if (launched && writes) ++block.version;
  }
  if (launched) {
    block.last = stream;
    asks("release", [&] { engine.release(*hold, stream); });
  } else {
    asks("release", [&] { engine.release_unused({&*hold, 1}); });
  }
  return launched;
}

bool Job::write(JobBlock* block, CUstream stream, bool anyway) {
  return block && use(*block, stream, true, anyway);
}

bool Job::read(JobBlock* block, CUstream stream, bool anyway) {
  return block && use(*block, stream, false, anyway);
}

void Job::drop(JobBlock* block) {
  if (!block) return;
  const auto at = std::find_if(blocks_.begin(), blocks_.end(),
                               [&](const auto& each) { return each.get() == block; });
  const std::unique_ptr<JobBlock> gone = std::move(*at);
  blocks_.erase(at);
  // A use elsewhere that cannot be told is waited for by the program itself.
  if (gone->last != gone->home &&
      !does("record_stream", [&] {
        return engine(gone->device).record_stream(gone->address, gone->last);
      }))
    machine_->synchronize();
  if (auto freed = does("free", [&] { return engine(gone->device).free(gone->address); }); !freed)
    wrong("a free was refused: " + describe(freed.error()));
}

void Job::pump(int device) {
  asks("pump", [&] {
    for (int i = 0; i < 3; ++i) (void)engine(device).pump();
    if (engine(device).ponder_due()) (void)engine(device).ponder();
  });
}

void Job::quiet(int device) {
  watch("what is in flight");
  for (int i = 0; i < 500 && (engine(device).pump() || engine(device).busy()); ++i)
    machine_->clock().wait(1'000'000);
  asks("trim", [&] { engine(device).trim(); });
  engine(device).check();
  if (const auto left = EngineInspector(engine(device), *machine_, device).quiet(); left.oracle)
    wrong(fmt::format("{}: {}", left.oracle, left.words));
}

void Job::recover() {
  const unsigned before = errors;
  const auto must = [&](bool done, const char* what) {
    if (!done || errors != before)
      wrong(fmt::format("the driver is well again, and {} fails: {} ({} errors before)", what,
                        first_error, before));
  };
  first_error = before ? first_error : "";
  const auto told = std::exchange(first_error, "");
  for (int device = 0; device < options_.devices; ++device) {
    Result<void> set = engine(device).set_budget(options_.engine.budget_bytes);
    if (!set) wrong("set_budget: " + describe(set.error()));
    JobBlock* next = make(5 * MiB, device);
    must(next, "an allocation");
    must(write(next), "a write");
    drop(next);
  }
  const std::vector<std::unique_ptr<JobBlock>>& all = blocks_;
  for (const auto& block : all) must(read(block.get(), block->home), "a read");
  watch("synchronize");
  machine_->synchronize();
  look("synchronize");
  while (!blocks_.empty()) drop(blocks_.back().get());
  for (int device = 0; device < options_.devices; ++device) {
    quiet(device);
    if (const uint64_t bytes = engine(device).stats().allocated_bytes)
      wrong(fmt::format("{} bytes are allocated when all is freed", bytes));
    const FirnGpuCounts counts = machine_->counts(device);
    if (counts.frame_bytes != 0 || counts.mapped_bytes != 0)
      wrong(fmt::format("device {}: {} bytes of frames are left, {} mapped", device,
                        counts.frame_bytes, counts.mapped_bytes));
    if (counts.frame_bytes_peak > options_.engine.budget_bytes)
      wrong(fmt::format("device {} held {} bytes", device, counts.frame_bytes_peak));
    if (engine(device).stats().host_used_bytes != 0) wrong("host memory is in use still");
  }
  if (const uint64_t slots = machine_->store()->stats().slots_in_use)
    wrong(fmt::format("{} slots are left", slots));
  first_error = told;
}

void Job::end(bool clean) {
  watch("the end");
  if (!events_.empty()) {
    Driver::ContextGuard context(machine_->driver(), machine_->context(0));
    for (CUevent event : events_) (void)machine_->driver().event_destroy(event);
  }
  for (int device = 0; device < options_.devices; ++device) {
    machine_->close(device);
    if (const size_t left = machine_->store()->in_flight(static_cast<unsigned>(device)))
      wrong(fmt::format("{} requests of the store's go on after the end", left));
  }
  look("the end");
  blocks_.clear();
  if (!clean) return;
  for (int device = 0; device < options_.devices; ++device) {
    const FirnGpuCounts counts = machine_->counts(device);
    // (A stream of the job's own, and the default one.)
    if (counts.frame_bytes || counts.mapped_bytes || counts.events || counts.streams > 2 ||
        counts.host_registered_bytes)
      wrong(fmt::format("device {}: the end leaves {} bytes of frames, {} mapped, {} events, {} "
                        "streams, {} bytes of host memory registered",
                        device, counts.frame_bytes, counts.mapped_bytes, counts.events,
                        counts.streams, counts.host_registered_bytes));
  }
  if (const uint64_t bytes = machine_->gpu().reserved_bytes())
    wrong(fmt::format("the end leaves {} bytes of addresses reserved", bytes));
  if (const uint64_t slots = machine_->store()->stats().slots_in_use)
    wrong(fmt::format("the end leaves {} slots", slots));
}

}  // namespace firn::faults
