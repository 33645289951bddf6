// Finds out how a store would fare in a directory, by opening one there. Owns nothing; no locks.
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>

#include "backing/store/spill_file.h"
#include "firn/store.h"

namespace firn {

namespace {

constexpr size_t piece_bytes = size_t{8} << 20;
constexpr size_t pieces_most = 8;  // in flight

/// Moves every slot once, a few at a time, through the pieces of `staging`; the time it took.
Result<uint64_t> move_all(Store& store, const std::vector<Slot>& slots,
                          std::span<std::byte> staging, bool write) {
  Clock& clock = wall_clock();
  uint64_t begin_ns = clock.now_ns();
  size_t begun = 0, done = 0, pieces = staging.size() / piece_bytes;
  std::vector<size_t> idle(pieces);
  for (size_t i = 0; i < pieces; ++i) idle[i] = i;
  Error error;
  while (done < slots.size()) {
    while (begun < slots.size() && !idle.empty() && error.code == Code::ok) {
      size_t piece = idle.back();
      idle.pop_back();
      std::span<std::byte> bytes = staging.subspan(piece * piece_bytes, piece_bytes);
      Result<void> submitted = write ? store.write(0, slots[begun], bytes, piece)
                                     : store.read(0, slots[begun], bytes, piece);
      if (!submitted) error = submitted.error();
      if (submitted) ++begun;
    }
    StoreCompletion completions[pieces_most];
    size_t count = store.poll(0, completions);
    for (size_t i = 0; i < count; ++i) {
      idle.push_back(static_cast<size_t>(completions[i].tag));
      if (completions[i].error.code != Code::ok) error = completions[i].error;
    }
    done += count;
    if (error.code != Code::ok && done == begun) return error;
    if (count == 0) clock.wait(1'000'000);
  }
  return std::max<uint64_t>(clock.now_ns() - begin_ns, 1);
}

Result<void> measure(Store& store, size_t bytes, DirReport& report) {
  std::vector<Slot> slots;
  for (size_t at = 0; at < std::max(bytes, piece_bytes); at += piece_bytes) {
    Result<Slot> slot = store.reserve(piece_bytes);
    if (!slot) return slot.error();
    slots.push_back(*slot);
  }
  Result<StagingMemory> staging =
      StagingMemory::create(std::min(pieces_most, slots.size()) * piece_bytes);
  if (!staging) return staging.error();
  std::span<std::byte> memory = staging->bytes();
  for (size_t i = 0; i < memory.size(); i += sizeof(uint64_t)) {  // not zeros: some disks see those
    uint64_t word = (i + 1) * 0x9e3779b97f4a7c15u;
    std::copy_n(reinterpret_cast<std::byte*>(&word), sizeof word, memory.data() + i);
  }
  Result<void> attached = store.attach_staging(memory);
  if (!attached) return attached;
  double total = static_cast<double>(slots.size() * piece_bytes);
  // The first pass fills new room, which is slower than what follows in a job: it does not count.
  for (bool write : {true, true, false}) {
    Result<uint64_t> took_ns = move_all(store, slots, memory, write);
    if (!took_ns) return took_ns.error();
    (write ? report.write_bytes_s : report.read_bytes_s) =
        total / (static_cast<double>(*took_ns) * 1e-9);
  }
  return {};
}

}  // namespace

Result<DirReport> examine_dir(const std::string& dir, size_t measure_bytes) {
  DirReport report;
  report.dir = dir;
  struct statfs system {};
  if (::statfs(dir.c_str(), &system) != 0) {
    report.why = fmt::format("firn_dir: {}: {}", dir, errno_words(errno));
    return report;
  }
  report.filesystem = filesystem_name(system.f_type);
  report.free_bytes =
      static_cast<uint64_t>(system.f_bavail) * static_cast<uint64_t>(system.f_bsize);
  StoreOptions options;
  options.dirs = {dir};
  Result<std::unique_ptr<Store>> store = open_store(options);
  if (!store) {
    report.why = describe(store.error());
    return report;
  }
  report.usable = report.o_direct = true;
  if (measure_bytes > 0) {
    Result<void> measured = measure(**store, measure_bytes, report);
    if (!measured) report.why = "not measured: " + measured.error().text;
  }
  StoreStats stats = (*store)->stats();
  report.store_kind = stats.kind;
  if (!stats.why.empty()) report.why += (report.why.empty() ? "" : "; ") + stats.why;
  return report;
}

}  // namespace firn
