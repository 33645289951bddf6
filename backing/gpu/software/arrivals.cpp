// Copies into mapped memory: see arrivals.h.
#include "arrivals.h"
#include "sticky.h"
#include "tags.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace firn::software {

namespace {
constexpr uint64_t page = 4096;

void write_behind(const char* entry, const std::vector<FilePart>& parts, const char* from) {
  for (const FilePart& part : parts)
    for (size_t at = 0; at < part.bytes;) {
      const ssize_t n = ::pwrite(part.fd, from, part.bytes - at,
                                 static_cast<off_t>(part.offset + at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) die(entry, std::string("reading the copy's source: ") + std::strerror(errno));
      at += static_cast<size_t>(n);
      from += n;
    }
}
}  // namespace

uint64_t AddressSpace::begin_arrival(uint64_t address, size_t bytes) {
  explain_faults();
  const uint64_t base = round_up(address, page), end = (address + bytes) / page * page;
  if (end <= base) return 0;
  // The system may have no more mappings to give (vm.max_map_count): then nothing is forbidden.
  if (::mprotect(pointer(base), end - base, PROT_NONE) != 0) {
    arriving_[++arrivals_] = {base, end - base};
    end_arrival(arrivals_);
    return 0;
  }
  arriving_[++arrivals_] = {base, end - base};
  return arrivals_;
}

void AddressSpace::end_arrival(uint64_t arrival) {
  const auto it = arriving_.find(arrival);
  if (it == arriving_.end()) return;  // none, or of before a reset
  const Pages pages = it->second;
  arriving_.erase(it);
  for (uint64_t at = pages.base; at < pages.base + pages.bytes;) {
    const Mapping* mapping = mapping_around(at);
    if (!mapping) break;
    const uint64_t end = std::min(pages.base + pages.bytes, mapping->base + mapping->bytes);
    // No mappings to split with: all of it is opened, though others arrive in it (more lenient).
    if (::mprotect(pointer(at), end - at, mapping->protection()) != 0 &&
        ::mprotect(pointer(mapping->base), mapping->bytes, mapping->protection()) != 0)
      die("a copy's end", std::string("mprotect: ") + std::strerror(errno));
    at = end;
  }
  close_arriving(pages.base, pages.bytes);
}

void AddressSpace::close_arriving(uint64_t address, size_t bytes) const {
  for (const auto& [arrival, pages] : arriving_) {
    const uint64_t base = std::max(address, pages.base);
    const uint64_t end = std::min(address + bytes, pages.base + pages.bytes);
    if (base < end) (void)::mprotect(pointer(base), end - base, PROT_NONE);
  }
}

std::vector<AddressSpace::Pages> AddressSpace::closed_in(uint64_t address, size_t bytes) const {
  std::vector<Pages> closed;
  for (const auto& [arrival, pages] : arriving_) {
    const uint64_t base = std::max(address, pages.base);
    const uint64_t end = std::min(address + bytes, pages.base + pages.bytes);
    if (base < end) closed.push_back({base, end - base});
  }
  return closed;
}

uint64_t AddressSpace::begin_departure(uint64_t address, size_t bytes) {
  departing_[++departures_] = {address, bytes};
  return departures_;
}

void AddressSpace::end_departure(uint64_t departure) { departing_.erase(departure); }

bool AddressSpace::departing(uint64_t address, size_t bytes) const {
  return std::any_of(departing_.begin(), departing_.end(), [&](const auto& each) {
    const Pages& pages = each.second;
    return pages.base < address + bytes && address < pages.base + pages.bytes;
  });
}

std::vector<FilePart> AddressSpace::behind(const char* entry, uint64_t address,
                                           size_t bytes) const {
  std::vector<FilePart> parts;
  for (uint64_t at = address; at < address + bytes;) {
    const Mapping* mapping = mapping_around(at);
    if (!mapping || mapping->protection() != (PROT_READ | PROT_WRITE))
      die(entry, "writes to " + hex(at) + ", which is " +
                     (mapping && mapping->reachable ? "mapped for reading only" : "not mapped"));
    const uint64_t end = std::min(address + bytes, mapping->base + mapping->bytes);
    parts.push_back({file_of(*mapping->frame), mapping->frame->offset + (at - mapping->base),
                     end - at});
    at = end;
  }
  return parts;
}

std::string AddressSpace::access_words(uint64_t address) const {
  if (!of_device(address)) return {};
  for (const auto& [arrival, pages] : arriving_)
    if (address - pages.base < pages.bytes)
      return "a copy into it is not complete, and this use of it does not wait for the copy";
  const Mapping* mapping = mapping_around(address);
  if (!mapping) return reserved(address) ? "it is reserved, and nothing is mapped there" : "";
  if (mapping->protection() == PROT_READ) return "it is mapped for reading only";
  return mapping->protection() == PROT_NONE ? "it is mapped, and open to no device" : "";
}

void make_arrival(const Rows& rows, Body* body) {
  if (rows.rows != 1 || rows.slices != 1 || !gpu().space.reserved(rows.to)) return;
  auto arrival = std::make_shared<Arrival>();
  arrival->entry = body->entry;
  body->arrival = arrival;
  body->run = [rows, arrival] { arrive(rows, *arrival); };
  body->settle = [arrival, before = std::move(body->settle)] {
    gpu().space.end_arrival(std::exchange(arrival->closed, 0));
    before();
  };
}

void arrive(const Rows& rows, Arrival& arrival) {
  std::vector<FilePart> parts;
  {
    Lock lock(gpu().mutex);
    parts = gpu().space.behind(arrival.entry, rows.to, rows.bytes);
    if (!arrival.closed) {
      ++gpu().host_waiters;
      gpu().changed.wait(lock, [&] { return !gpu().space.departing(rows.to, rows.bytes); });
      --gpu().host_waiters;
    }
    if (!arrival.closed) arrival.closed = gpu().space.begin_arrival(rows.to, rows.bytes);
  }
  write_behind(arrival.entry, parts, reinterpret_cast<const char*>(rows.from));
}

namespace {
/// One row, out of mapped memory.
bool departs(const Rows& rows) {
  return rows.rows == 1 && rows.slices == 1 && gpu().space.reserved(rows.from);
}

/// Copies one row, but for the parts that are closed.
void copy_open(const Rows& rows, std::vector<AddressSpace::Pages> closed) {
  std::sort(closed.begin(), closed.end(),
            [](const auto& a, const auto& b) { return a.base < b.base; });
  auto* const to = reinterpret_cast<char*>(rows.to);
  uint64_t at = rows.from;
  for (const auto& range : closed) {
    if (range.base > at)
      std::memcpy(to + (at - rows.from), pointer(at), range.base - at);
    std::memset(to + (range.base - rows.from), 0xFF, range.bytes);
    at = std::max(at, range.base + range.bytes);
  }
  if (const uint64_t end = rows.from + rows.bytes; at < end)
    std::memcpy(to + (at - rows.from), pointer(at), end - at);
}
}  // namespace

void make_departure(const Rows& rows, Body* body) {
  if (!departs(rows)) return;
  body->run = [rows] {
    AddressSpace& space = gpu().space;
    Lock lock(gpu().mutex);
    const uint64_t departure = space.begin_departure(rows.from, rows.bytes);
    const auto closed = space.closed_in(rows.from, rows.bytes);
    lock.unlock();
    copy_open(rows, closed);
    lock.lock();
    space.end_departure(departure);
    if (gpu().host_waiters) gpu().changed.notify_all();
  };
}

void depart(const Rows& rows) {
  if (!departs(rows)) return move_rows(rows);
  copy_open(rows, gpu().space.closed_in(rows.from, rows.bytes));
}

void close_at_once(const std::shared_ptr<Work>& copy) {
  if (!copy || copy->done || !(copy->body.arrival || copy->body.tags)) return;
  const Range to = copy->body.ranges.front();
  for (const auto& before : copy->stream->queue) {
    // It waits for work of other streams, which may use anything until then.
    if (!before->after.empty()) return;
    if (before == copy) break;
    if (before->body.type != node_memcpy && !before->body.instant()) return;
    for (const Range& range : before->body.ranges)
      if (range.overlaps(to.base, to.bytes)) return;
  }
  if (copy->body.tags) return close_tags(*copy->body.tags);
  Arrival& arrival = *copy->body.arrival;
  if (!arrival.closed && !gpu().space.departing(to.base, to.bytes))
    arrival.closed = gpu().space.begin_arrival(to.base, to.bytes);
}

}  // namespace firn::software
