#include "allocator/host_tier.h"

#include <algorithm>

#include "allocator/check.h"

namespace firn {

namespace {
constexpr uint64_t region_bytes = 128u << 20;  // registered at a time: start-up stays short
constexpr uint64_t ahead_most = uint64_t{1} << 30;
constexpr size_t align_up(size_t bytes) {
  return (bytes + store_alignment - 1) / store_alignment * store_alignment;
}
}  // namespace

HostTier::HostTier(const Driver& driver, Store* store, uint64_t budget_bytes,
                   std::atomic<uint64_t>* shared_left, uint64_t own, bool no_bytes, int node,
                   bool ahead)
    : driver_(driver), store_(store), budget_(budget_bytes), shared_left_(shared_left),
      own_left_(shared_left ? own : 0), no_bytes_(no_bytes), node_(node), ahead_(ahead) {}

uint64_t HostTier::budget() const {
  if (exhausted_) return mapped_;
  if (!shared_left_) return budget_;
  return std::min(budget_, mapped_ + own_left_ + shared_left_->load(std::memory_order_relaxed));
}

HostTier::~HostTier() {
  for (Region& region : regions_)
    if (region.registered) (void)driver_.mem_host_unregister(region.memory.bytes().data());
}

void HostTier::abandon() {
  for (Region& region : regions_) {
    region.registered = false;
    region.memory.abandon();
  }
}

bool HostTier::grow(size_t bytes) {
  if (ahead_ || mapped_ >= budget()) return false;
  uint64_t size = std::min(std::max<uint64_t>(region_bytes, bytes), budget() - mapped_);
  size -= size % store_alignment;
  if (size < bytes || exhausted_) return false;
  if (shared_left_ && !claim(size)) return false;
  return add_region(size);
}

/// The more is in use, the more is made at a time.
uint64_t HostTier::ahead_bytes() const {
  if (!ahead_ || preparing_ || exhausted_ || mapped_ >= budget()) return 0;
  if (!wanted_ && ranges_.used() == 0) return 0;  // nothing leaves the device so far
  const uint64_t spare = std::clamp(ranges_.used() / 2, region_bytes, ahead_most);
  if (!wanted_ && mapped_ >= ranges_.used() + spare) return 0;
  const uint64_t size = std::min(spare, budget() - mapped_);
  return size - size % store_alignment;
}

bool HostTier::may_grow() const {
  return ahead_ && (preparing_ || (!exhausted_ && mapped_ + store_alignment <= budget()));
}

HostTier::Ahead HostTier::begin_ahead() {
  Ahead ahead;
  ahead.bytes = ahead_bytes();
  if (ahead.bytes > 0 && shared_left_ && !claim(ahead.bytes)) ahead.bytes = 0;
  preparing_ = ahead.bytes > 0;
  return ahead;
}

void HostTier::end_ahead(Ahead ahead) {
  preparing_ = false;
  (void)adopt(std::move(ahead));
}

/// Its memory is null where the system refused it, or the store did.
void HostTier::prepare(Ahead& ahead) const {
  Result<StagingRegion> memory = StagingRegion::create(ahead.bytes, no_bytes_, node_);
  if (!memory) {
    ahead.trouble = "host memory for staging refused: " + describe(memory.error()) +
                    "; firn_host sets how much is asked for";
    return;
  }
  if (ahead_ && !no_bytes_) memory->populate();
  std::span<std::byte> span = memory->bytes();
  // PORTABLE: several devices' engines may copy through it.
  CUresult result =
      driver_.mem_host_register(span.data(), span.size(), CU_MEMHOSTREGISTER_PORTABLE);
  ahead.registered = result == CUDA_SUCCESS;
  if (!ahead.registered)
    ahead.trouble = "staging memory is not pinned, copies are slower: " +
                    driver_.error("cuMemHostRegister", result).text;
  if (store_) {
    Result<void> attached = store_->attach_staging(span);
    if (!attached) {
      if (ahead.trouble.empty()) ahead.trouble = describe(attached.error());
      if (ahead.registered) (void)driver_.mem_host_unregister(span.data());
      return;
    }
  }
  ahead.memory = std::move(*memory);
}

bool HostTier::adopt(Ahead ahead) {
  if (trouble_.empty()) trouble_ = ahead.trouble;
  if (!ahead.memory) {
    exhausted_ = true;
    return false;
  }
  const std::span<std::byte> span = ahead.memory->bytes();
  ranges_.add(reinterpret_cast<uint64_t>(span.data()), span.size());
  mapped_ += span.size();
  regions_.push_back({std::move(*ahead.memory), ahead.registered});
  return true;
}

bool HostTier::add_region(size_t size) {
  Ahead ahead;
  ahead.bytes = size;
  prepare(ahead);
  return adopt(std::move(ahead));
}

/// Takes `size` out of its own budget, then of the shared one; regions are never given back before
/// the end.
bool HostTier::claim(uint64_t size) {
  const uint64_t own = std::min(size, own_left_), rest = size - own;
  uint64_t left = shared_left_->load(std::memory_order_relaxed);
  do {
    if (left < rest) return false;
  } while (!shared_left_->compare_exchange_weak(left, left - rest, std::memory_order_relaxed));
  own_left_ -= own;
  return true;
}

Staging* HostTier::acquire(size_t bytes, uint64_t reserve) {
  bytes = align_up(bytes);
  if (ranges_.used() + bytes + reserve > budget()) return nullptr;
  auto begin = ranges_.take(bytes);
  if (!begin && grow(bytes)) begin = ranges_.take(bytes);
  wanted_ = !begin;
  if (!begin) return nullptr;
  return new Staging{reinterpret_cast<std::byte*>(*begin), bytes, 1};
}

Staging* HostTier::acquire_beyond(size_t bytes) {
  bytes = align_up(bytes);
  auto begin = ranges_.take(bytes);
  if (!begin && add_region(bytes)) begin = ranges_.take(bytes);
  if (!begin) return nullptr;
  return new Staging{reinterpret_cast<std::byte*>(*begin), bytes, 1};
}

void HostTier::unref(Staging* staging) {
  FIRN_CHECK(staging->refs > 0, "staging %p", static_cast<void*>(staging->data));
  if (--staging->refs > 0) return;
  ranges_.release(reinterpret_cast<uint64_t>(staging->data), staging->bytes);
  delete staging;
}

}  // namespace firn
