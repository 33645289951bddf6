#include "allocator/memory/host_tier.h"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "firn/check.h"

namespace firn {

namespace {
constexpr uint64_t registered_at_once = 128u << 20;  // so that start-up stays short
constexpr uint64_t refused_wait_ns = 1'000'000'000;  // before the system is asked again
constexpr uint64_t least_bytes = 2u << 20;  // a smaller extent holds no piece
constexpr size_t align_up(size_t bytes) {
  return (bytes + store_alignment - 1) / store_alignment * store_alignment;
}
}  // namespace

HostTier::HostTier(const Driver& driver, Store* store, uint64_t budget_bytes,
                   std::atomic<uint64_t>* shared_left, uint64_t own, bool no_bytes, int node,
                   bool ahead, HostRoom* room)
    : driver_(driver), store_(store), budget_(budget_bytes), shared_left_(shared_left),
      own_left_(own), no_bytes_(no_bytes), node_(node), ahead_(ahead),
      room_(room), own_(own) {}

uint64_t HostTier::budget() const { return exhausted_ ? mapped_ : most(); }

uint64_t HostTier::most() const {
  if (!shared_left_) return budget_;
  const uint64_t unclaimed = own_left_ + shared_left_->load(std::memory_order_relaxed);
  return std::min(budget_, mapped_ + std::min(unclaimed, room()));
}

/// Bytes that may be made beyond those mapped: at first even some of what is left for others, or
/// nothing could leave the device.
uint64_t HostTier::room() const {
  if (!room_) return UINT64_MAX;
  const uint64_t left = room_->left_bytes.load(std::memory_order_relaxed);
  const uint64_t first = mapped_ < own_ ? std::min(left / 2, own_ - mapped_) : 0;
  return std::max(first, left - std::min(left, room_->kept_bytes));
}

HostTier::~HostTier() {
  if (abandoned_) return;
  unregister();
  delete &extents_;
}

void HostTier::unregister() {
  for (Extent& extent : extents_)
    if (std::exchange(extent.registered, false))
      (void)driver_.mem_host_unregister(extent.memory.bytes().data());
}

bool HostTier::grow(size_t bytes) {
  if (ahead_ || (exhausted_ && !asks_again_) || mapped_ >= most()) return false;
  uint64_t size = std::min(std::max<uint64_t>(registered_at_once, bytes), most() - mapped_);
  size -= size % store_alignment;
  if (size < bytes) return false;
  Ahead ahead;
  ahead.bytes = size;
  if (shared_left_ && !claim(ahead)) return false;
  prepare_now(ahead);
  return adopt(std::move(ahead));
}

/// The more is in use, the more is made at a time.
uint64_t HostTier::ahead_bytes() const {
  if (!ahead_ || preparing_ || (exhausted_ && !asks_again_) || mapped_ >= most()) return 0;
  if (wanted_ == 0 && ranges_.used() == 0) return 0;  // nothing leaves the device so far
  const uint64_t least = room_ ? room_->extent_bytes : registered_at_once;
  const uint64_t spare = std::clamp(ranges_.used() / 2, least, std::max(least, 8 * least));
  if (wanted_ == 0 && mapped_ >= ranges_.used() + spare) return 0;
  const uint64_t size = std::min(std::max<uint64_t>(spare, wanted_), most() - mapped_);
  return size < std::max<uint64_t>(least_bytes, wanted_) ? 0 : size - size % store_alignment;
}

bool HostTier::may_grow() const {
  if (!ahead_ || exhausted_) return preparing_ && !asking_;
  return preparing_ || mapped_ + std::max<uint64_t>(least_bytes, wanted_) <= budget();
}

void HostTier::look_again(uint64_t now_ns) {
  if (!exhausted_) return;
  if (exhausted_ns_ == 0) exhausted_ns_ = std::max<uint64_t>(now_ns, 1);
  asks_again_ = now_ns >= exhausted_ns_ + refused_wait_ns;
}

HostTier::Ahead HostTier::begin_ahead() {
  Ahead ahead;
  ahead.bytes = ahead_bytes();
  if (ahead.bytes > 0 && shared_left_ && !claim(ahead)) ahead.bytes = 0;
  preparing_ = ahead.bytes > 0;
  asking_ = exhausted_;
  if (room_) {  // until the next reading
    uint64_t left = room_->left_bytes.load(std::memory_order_relaxed);
    while (!room_->left_bytes.compare_exchange_weak(left, left - std::min(left, ahead.bytes),
                                                    std::memory_order_relaxed)) {}
  }
  return ahead;
}

void HostTier::end_ahead(Ahead ahead) {
  preparing_ = false;
  (void)adopt(std::move(ahead));
}

/// Its memory is null where the system refused it, or the store did.
void HostTier::prepare_now(Ahead& ahead) const {
  try {
    make(ahead);
  } catch (const std::bad_alloc&) {  // for bookkeeping, or a message: none is made
  }
}

void HostTier::make(Ahead& ahead) const {
  Result<StagingMemory> memory = StagingMemory::create(ahead.bytes, no_bytes_, node_);
  if (!memory) {
    ahead.trouble = "the system refused host memory for staging: " + describe(memory.error()) +
                    "; firn_host sets how much Firn requests";
    return;
  }
  CUresult result = CUDA_SUCCESS;
  const auto pin = [&] {  // PORTABLE: several devices' engines may copy through it
    const std::span<std::byte> bytes = memory->bytes();
    result = driver_.mem_host_register(bytes.data(), bytes.size(), CU_MEMHOSTREGISTER_PORTABLE);
    return result == CUDA_SUCCESS;
  };
  if (ahead_ && !no_bytes_) memory->populate();
  ahead.registered = pin();
  if (!ahead.registered && memory->pages() == std::string_view("hugetlb")) {
    // Pages that the driver cannot pin may fail for us too: an access would raise SIGBUS.
    Result<StagingMemory> ordinary = StagingMemory::create(ahead.bytes, false, node_, false);
    if (ordinary) {
      memory = std::move(ordinary);
      if (ahead_) memory->populate();
      ahead.registered = pin();
    }
  }
  ahead.memory = std::move(*memory);
  const auto unpinned = [&] {  // before it is unmapped
    const std::span<std::byte> bytes = ahead.memory->bytes();
    if (std::exchange(ahead.registered, false)) (void)driver_.mem_host_unregister(bytes.data());
    ahead.memory.reset();
  };
  try {
    if (!ahead.registered)
      ahead.trouble = "staging memory is not pinned, so copies are slower: " +
                      driver_.error("cuMemHostRegister", result).text;
    Result<void> attached;
    if (store_) attached = store_->attach_staging(ahead.memory->bytes());
    if (attached) return;
    unpinned();
    if (ahead.trouble.empty()) ahead.trouble = describe(attached.error());
  } catch (...) {
    unpinned();
    throw;
  }
}

bool HostTier::adopt(Ahead ahead) {
  if (trouble_.empty()) trouble_ = std::move(ahead.trouble);
  exhausted_ = !ahead.memory;
  asks_again_ = false;
  exhausted_ns_ = 0;
  if (!ahead.memory) {
    unclaim(ahead.own_bytes, ahead.shared_bytes);
    return false;
  }
  const std::span<std::byte> span = ahead.memory->bytes();
  Extent extent{std::move(*ahead.memory), ahead.registered, ahead.own_bytes, ahead.shared_bytes};
  try {
    extents_.reserve(extents_.size() + 1);
    ranges_.add(reinterpret_cast<uint64_t>(span.data()), span.size());
  } catch (const std::bad_alloc&) {  // for its bookkeeping; none of it is in use
    exhausted_ = true;
    unclaim(extent.own_bytes, extent.shared_bytes);
    give(std::move(extent));
    return false;
  }
  mapped_ += span.size();
  extents_.push_back(std::move(extent));
  return true;
}

bool HostTier::add_extent(size_t size) {
  Ahead ahead;
  ahead.bytes = size;
  prepare_now(ahead);
  return adopt(std::move(ahead));
}

void HostTier::unclaim(uint64_t own_bytes, uint64_t shared_bytes) {
  own_left_ += own_bytes;
  if (shared_left_) shared_left_->fetch_add(shared_bytes, std::memory_order_relaxed);
}

bool HostTier::close_one() {
  if (closing_) return false;
  const Extent* least = nullptr;
  uint64_t least_kept = UINT64_MAX;
  for (const Extent& extent : extents_) {
    const auto begin = reinterpret_cast<uint64_t>(extent.memory.bytes().data());
    const uint64_t bytes = extent.memory.bytes().size();
    if (mapped_ < own_ + bytes) continue;  // the rest would move nothing
    uint64_t kept = bytes;
    for (auto it = ranges_.free_ranges().lower_bound(begin);
         it != ranges_.free_ranges().end() && it->first < begin + bytes; ++it)
      kept -= it->second;
    if (kept < least_kept) {
      least = &extent;
      least_kept = kept;
    }
  }
  if (!least) return false;
  try {
    closed_ranges_.reserve(least->memory.bytes().size() / store_alignment);  // most it can hold
  } catch (const std::bad_alloc&) {
    return false;
  }
  closing_ = least->memory.bytes().data();
  closing_bytes_ = least->memory.bytes().size();
  closing_free_ = 0;
  mapped_ -= closing_bytes_;
  const auto begin = reinterpret_cast<uint64_t>(closing_);
  for (auto it = ranges_.free_ranges().lower_bound(begin);
       it != ranges_.free_ranges().end() && it->first < begin + closing_bytes_;
       it = ranges_.free_ranges().lower_bound(begin)) {
    const auto [at, bytes] = *it;
    close_range(at, bytes);
  }
  return true;
}

/// (Extents are never adjacent, so that a free range lies in one. The list has room for it.)
void HostTier::close_range(uint64_t begin, uint64_t bytes) {
  FIRN_CHECK(ranges_.remove(begin, bytes), "no free range at %llx", (unsigned long long)begin);
  closed_ranges_.push_back({begin, bytes});
  closing_free_ += bytes;
}

bool HostTier::closes(const Staging& staging) const {
  return closing_ && staging.data >= closing_ && staging.data < closing_ + closing_bytes_;
}

std::optional<HostTier::Extent> HostTier::take_closed() {
  if (!closing_ || closing_free_ < closing_bytes_) return std::nullopt;
  for (size_t i = 0; i < extents_.size(); ++i) {
    if (extents_[i].memory.bytes().data() != closing_) continue;
    Extent extent = std::move(extents_[i]);
    extents_.erase(extents_.begin() + static_cast<ptrdiff_t>(i));
    closing_ = nullptr;
    closed_ranges_.clear();
    unclaim(extent.own_bytes, extent.shared_bytes);
    return extent;
  }
  return std::nullopt;
}

void HostTier::give(Extent extent) const {
  if (store_) store_->detach_staging(extent.memory.bytes());
  if (extent.registered) (void)driver_.mem_host_unregister(extent.memory.bytes().data());
}

void HostTier::reopen() {
  if (!closing_) return;
  for (; !closed_ranges_.empty(); closed_ranges_.pop_back()) {
    const auto [at, bytes] = closed_ranges_.back();
    ranges_.add(at, bytes, true);
    closing_free_ -= bytes;
  }
  mapped_ += closing_bytes_;
  closing_ = nullptr;
}

/// Takes its bytes out of its own budget, then of the shared one.
bool HostTier::claim(Ahead& ahead) {
  const uint64_t own = std::min(ahead.bytes, own_left_), rest = ahead.bytes - own;
  uint64_t left = shared_left_->load(std::memory_order_relaxed);
  do {
    if (left < rest) return false;
  } while (!shared_left_->compare_exchange_weak(left, left - rest, std::memory_order_relaxed));
  own_left_ -= own;
  ahead.own_bytes = own;
  ahead.shared_bytes = rest;
  return true;
}

Staging* HostTier::acquire(size_t bytes, uint64_t reserve) {
  bytes = align_up(bytes);
  wanted_ = bytes;
  if (ranges_.used() + bytes + reserve > (asks_again_ ? most() : budget())) return nullptr;
  auto begin = ranges_.take(bytes);
  if (!begin && grow(bytes)) begin = ranges_.take(bytes);
  if (!begin) return nullptr;
  wanted_ = 0;
  return staging_at(*begin, bytes);
}

Staging* HostTier::acquire_beyond(size_t bytes) {
  bytes = align_up(bytes);
  auto begin = ranges_.take(bytes);
  if (!begin && add_extent(bytes)) begin = ranges_.take(bytes);
  if (!begin) return nullptr;
  return staging_at(*begin, bytes);
}

Staging* HostTier::staging_at(uint64_t begin, size_t bytes) {
  auto* staging = new (std::nothrow) Staging{reinterpret_cast<std::byte*>(begin), bytes, 1};
  if (staging) return staging;
  ranges_.release(begin, bytes);
  throw std::bad_alloc();
}

void HostTier::unref(Staging* staging) {
  FIRN_CHECK(staging->refs > 0, "staging %p", static_cast<void*>(staging->data));
  if (--staging->refs > 0) return;
  const auto begin = reinterpret_cast<uint64_t>(staging->data);
  ranges_.release(begin, staging->bytes);
  if (closes(*staging)) close_range(begin, staging->bytes);
  delete staging;
}

}  // namespace firn
