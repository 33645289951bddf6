// Throughput of the store beside nothing else: DIR [PIECE_MIB [IN_FLIGHT [TOTAL_MIB]]]. For each
// kind: a first write into new room, overwriting in place (what a job does), reading back with sums
// verified, every second slot written while the others are read; MB/s and processor time. Compare
// with dd of the same request size and oflag=direct.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "firn/store.h"

namespace {

using namespace firn;

double processor_s() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

enum class Pass { write, read, mixed };

/// Moves every slot once with as many requests at a time as staging holds; false with words on an
/// error.
bool pass(Store& store, const std::vector<Slot>& slots, std::span<std::byte> staging,
          size_t piece_bytes, Pass what) {
  std::vector<size_t> idle;
  for (size_t i = 0; i < staging.size() / piece_bytes; ++i) idle.push_back(i);
  size_t begun = 0, done = 0;
  while (done < slots.size()) {
    while (begun < slots.size() && !idle.empty()) {
      std::span<std::byte> bytes = staging.subspan(idle.back() * piece_bytes, piece_bytes);
      const bool write = what == Pass::write || (what == Pass::mixed && begun % 2 == 1);
      Result<void> asked = write ? store.write(0, slots[begun], bytes, idle.back())
                                 : store.read(0, slots[begun], bytes, idle.back());
      if (!asked) {
        fmt::print(stderr, "{}\n", describe(asked.error()));
        return false;
      }
      idle.pop_back();
      ++begun;
    }
    StoreCompletion completions[16];
    size_t count = store.poll(0, completions);
    for (size_t i = 0; i < count; ++i) {
      if (completions[i].error.code != Code::ok) {
        fmt::print(stderr, "{}\n", describe(completions[i].error));
        return false;
      }
      idle.push_back(completions[i].tag);
    }
    done += count;
    if (count == 0) wall_clock().wait(10'000'000);
  }
  return true;
}

bool measure(const char* dir, StoreOptions::Kind kind, size_t piece_bytes, size_t in_flight,
             size_t total_bytes) {
  StoreOptions options;
  options.dirs = {dir};
  options.kind = kind;
  options.depth = std::max(options.depth, static_cast<unsigned>(in_flight));
  Result<std::unique_ptr<Store>> store = open_store(options);
  if (!store) {
    fmt::print(stderr, "{}\n", describe(store.error()));
    return false;
  }
  Result<StagingMemory> staging = StagingMemory::create(piece_bytes * in_flight);
  if (!staging) return false;
  std::span<std::byte> memory = staging->bytes();
  uint64_t word = 1;
  for (size_t i = 0; i + 8 <= memory.size(); i += 8) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    std::copy_n(reinterpret_cast<std::byte*>(&word), 8, memory.data() + i);
  }
  if (!(*store)->attach_staging(memory)) return false;
  std::vector<Slot> slots;
  while (slots.size() * piece_bytes < total_bytes) {
    Result<Slot> slot = (*store)->reserve(piece_bytes);
    if (!slot) {
      fmt::print(stderr, "{}\n", describe(slot.error()));
      return false;
    }
    slots.push_back(*slot);
  }
  const struct {
    const char* name;
    Pass pass;
  } passes[] = {{"first write", Pass::write}, {"overwrite", Pass::write}, {"read", Pass::read},
                {"mixed", Pass::mixed},       {"overwrite", Pass::write}, {"read", Pass::read},
                {"mixed", Pass::mixed}};
  for (const auto& [name, what] : passes) {
    double cpu = processor_s();
    uint64_t begin = wall_clock().now_ns();
    if (!pass(**store, slots, memory, piece_bytes, what)) return false;
    auto ns = static_cast<double>(wall_clock().now_ns() - begin);
    double gb = static_cast<double>(slots.size() * piece_bytes) * 1e-9;
    fmt::print("{:9} {:12} {:7.0f} MB/s {:6.1f} CPU ms/GB  ({} pages)\n", (*store)->stats().kind,
               name, gb / ns * 1e12, (processor_s() - cpu) * 1e3 / gb, staging->pages());
  }
  if (!(*store)->stats().why.empty()) fmt::print("  {}\n", (*store)->stats().why);
  return true;
}

size_t number(int argc, char** argv, int at, size_t otherwise) {
  return argc > at ? std::strtoull(argv[at], nullptr, 10) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  size_t piece = number(argc, argv, 2, 1), in_flight = number(argc, argv, 3, 16);
  size_t total = number(argc, argv, 4, 2048);
  if (argc < 2 || piece == 0 || in_flight == 0 || total == 0) {
    fmt::print(stderr, "usage: store_bench DIR [PIECE_MIB [IN_FLIGHT [TOTAL_MIB]]]\n");
    return 2;
  }
  bool ok = true;
  for (auto kind : {StoreOptions::Kind::io_uring, StoreOptions::Kind::threads})
    ok &= measure(argv[1], kind, piece << 20, in_flight, total << 20);
  return ok ? 0 : 1;
}
