#include "tests/simulation/events.h"

#include "tests/simulation/draw.h"
#include "tests/simulation/tag.h"

namespace firn::sim {

namespace {
Driver real;
Events* events = nullptr;

uint64_t word(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult mem_address_reserve(CUdeviceptr* address, size_t bytes, size_t alignment,
                             CUdeviceptr hint, unsigned long long flags) {
  const CUresult result = real.mem_address_reserve(address, bytes, alignment, hint, flags);
  if (result == CUDA_SUCCESS) events->add_range(*address, bytes);
  events->note("reserve", bytes, static_cast<uint64_t>(result));
  return result;
}
CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t bytes,
                    const CUmemAllocationProp* prop, unsigned long long flags) {
  const CUresult result = real.mem_create(handle, bytes, prop, flags);
  events->refused_creates += result != CUDA_SUCCESS;
  events->note("create", bytes, static_cast<uint64_t>(result),
               result == CUDA_SUCCESS ? uint64_t{*handle} : 0);
  return result;
}
CUresult mem_release(CUmemGenericAllocationHandle handle) {
  const CUresult result = real.mem_release(handle);
  events->note("release", handle, static_cast<uint64_t>(result));
  return result;
}
CUresult mem_map(CUdeviceptr address, size_t bytes, size_t offset,
                 CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (events->may_switch) events->may_switch();
  const CUresult result = real.mem_map(address, bytes, offset, handle, flags);
  events->refused_maps += result != CUDA_SUCCESS;
  events->note("map", events->named(address), handle, static_cast<uint64_t>(result));
  return result;
}
CUresult mem_unmap(CUdeviceptr address, size_t bytes) {
  if (events->may_switch) events->may_switch();
  const CUresult result = real.mem_unmap(address, bytes);
  events->refused_unmaps += result != CUDA_SUCCESS;
  events->note("unmap", events->named(address), bytes, static_cast<uint64_t>(result));
  return result;
}
CUresult mem_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  const CUresult result = real.mem_set_access(address, bytes, access, count);
  events->note("access", events->named(address), bytes, static_cast<uint64_t>(result));
  return result;
}
CUresult mem_host_register(void* address, size_t bytes, unsigned flags) {
  const CUresult result = real.mem_host_register(address, bytes, flags);
  events->refused_registers += result != CUDA_SUCCESS;
  events->add_range(word(address), bytes);
  events->note("register", bytes, static_cast<uint64_t>(result));
  return result;
}
CUresult memcpy_dtoh_async(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  const CUresult result = real.memcpy_dtoh_async(to, from, bytes, stream);
  events->refused_copies += result != CUDA_SUCCESS;
  events->note("out", events->named(word(to)), events->named(from),
               bytes ^ static_cast<uint64_t>(result) << 48);
  return result;
}
CUresult memcpy_htod_async(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  const CUresult result = real.memcpy_htod_async(to, from, bytes, stream);
  events->refused_copies += result != CUDA_SUCCESS;
  events->note("in", events->named(to), events->named(word(from)),
               bytes ^ static_cast<uint64_t>(result) << 48);
  return result;
}
CUresult event_record(CUevent event, CUstream stream) {
  const CUresult result = real.event_record(event, stream);
  events->note("record", word(event), word(stream), static_cast<uint64_t>(result));
  return result;
}
CUresult event_query(CUevent event) {
  CUresult result = real.event_query(event);
  if (result == CUDA_SUCCESS && events->now() < events->not_ready_until_ns)
    result = CUDA_ERROR_NOT_READY;
  events->note("query", word(event), static_cast<uint64_t>(result));
  return result;
}
CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags) {
  const CUresult result = real.stream_wait_event(stream, event, flags);
  events->note("wait", word(stream), word(event), static_cast<uint64_t>(result));
  return result;
}
}  // namespace

void Events::stand_in_front(Driver& driver) {
  real = driver;
  events = this;
  driver.mem_address_reserve = mem_address_reserve;
  driver.mem_create = mem_create;
  driver.mem_release = mem_release;
  driver.mem_map = mem_map;
  driver.mem_unmap = mem_unmap;
  driver.mem_set_access = mem_set_access;
  driver.mem_host_register = mem_host_register;
  driver.memcpy_dtoh_async = memcpy_dtoh_async;
  driver.memcpy_htod_async = memcpy_htod_async;
  driver.event_record = event_record;
  driver.event_query = event_query;
  driver.stream_wait_event = stream_wait_event;
}

void Events::note(const char* what, uint64_t a, uint64_t b, uint64_t c) {
  const uint64_t at = now ? now() : 0;
  uint64_t mixed = hash_;
  for (uint64_t each : {static_cast<uint64_t>(what[0]) << 8 | static_cast<uint64_t>(what[1]), a, b,
                        c, at}) {
    mixed = (mixed ^ each) * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 29;
  }
  hash_ = mixed;
  ++count_;
  if (log_)
    std::fprintf(log_, "%llu %s %llx %llx %llx\n", static_cast<unsigned long long>(at), what,
                 static_cast<unsigned long long>(a), static_cast<unsigned long long>(b),
                 static_cast<unsigned long long>(c));
}

uint64_t Events::named(uint64_t address) const {
  for (size_t i = 0; i < ranges_.size(); ++i)
    if (address - ranges_[i].base < ranges_[i].bytes)
      return (i + 1) << 48 | (address - ranges_[i].base);
  return 0;
}

Result<void> SeenStore::attach_staging(std::span<std::byte> staging) {
  return store_.attach_staging(staging);
}

Result<Slot> SeenStore::reserve(size_t bytes, bool wait) {
  Result<Slot> slot = store_.reserve(bytes, wait);
  events_.note("slot", bytes, slot ? slot->id : 0);
  return slot;
}

void SeenStore::begins(Slot slot, uint64_t tag) {
  ++in_flight_[slot.id].requests;
  slot_of_[tag] = slot.id;
}

bool SeenStore::ends(Slot slot) {
  const auto flying = in_flight_.find(slot.id);
  if (flying == in_flight_.end()) return false;
  const bool discarded = flying->second.discarded;
  if (--flying->second.requests == 0) in_flight_.erase(flying);
  return discarded;
}

Result<void> SeenStore::write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                              uint64_t tag) {
  uint64_t first = 0;
  tags_.read(bytes.data(), store_alignment, &first);
  content_[slot.id] = Tag{first}.content();
  begins(slot, tag);
  events_.note("write", queue, slot.id, events_.named(word(bytes.data())));
  return store_.write(queue, slot, bytes, tag);
}

Result<void> SeenStore::read(unsigned queue, Slot slot, std::span<std::byte> bytes, uint64_t tag) {
  begins(slot, tag);
  events_.note("read", queue, slot.id, events_.named(word(bytes.data())));
  return store_.read(queue, slot, bytes, tag);
}

bool SeenStore::cancel(unsigned queue, uint64_t tag) {
  const bool done = store_.cancel(queue, tag);
  cancelled += done;
  if (done) (void)ends(Slot{slot_of_[tag]});
  events_.note("cancel", queue, done);
  return done;
}

void SeenStore::discard(Slot slot) {
  events_.note("discard", slot.id);
  const auto flying = in_flight_.find(slot.id);
  if (flying != in_flight_.end()) {
    ++discarded_in_flight;
    flying->second.discarded = true;
  }
  store_.discard(slot);
}

size_t SeenStore::poll(unsigned queue, std::span<StoreCompletion> out) {
  const size_t count = store_.poll(queue, out);
  for (size_t i = 0; i < count; ++i) {
    const StoreCompletion& each = out[i];
    events_.note("done", each.slot.id, static_cast<uint64_t>(each.kind),
                 static_cast<uint64_t>(each.error.code));
    stale += ends(each.slot);
    if (each.error.code == Code::ok) continue;
    if (each.kind == StoreCompletion::Kind::write) {
      ++writes_failed;
      continue;
    }
    Bad& bad = bad_[content_[each.slot.id]];
    ++(each.error.code == Code::corrupt ? bad.corrupt : bad.failed);
  }
  return count;
}

SeenStore::Bad SeenStore::bad(uint64_t content) const {
  const auto at = bad_.find(content);
  return at == bad_.end() ? Bad{} : at->second;
}

}  // namespace firn::sim
