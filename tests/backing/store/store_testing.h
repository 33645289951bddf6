// What the tests of the store share: a directory that goes away, a clock for the simulated disk,
// patterns whose bytes say where they belong, waiting for completions, and system calls that fail
// on command. Owns what it creates. Locks: FaultyCalls' own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "backing/store/file_store.h"
#include "firn/store.h"
#include "tests/temp_dir.h"

namespace firn::testing_store {

using test::TempDir;

/// Time that stands still until somebody waits; then it goes on to the store's next completion.
class StepClock : public Clock {
 public:
  uint64_t now_ns() override { return now_; }
  void wait(uint64_t ns_max) override {
    uint64_t next = store ? store->next_completion_ns() : UINT64_MAX;
    if (next <= now_) return;
    now_ = std::min(next, ns_max == UINT64_MAX ? next : now_ + ns_max);
  }
  void notify() override {}
  const SimulatedStore* store = nullptr;

 private:
  uint64_t now_ = 1'000;
};

/// Bytes that depend on `seed` and on their place: neither another slot's nor moved ones pass.
inline void fill(std::span<std::byte> bytes, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(bytes.data() + i, &state, 8);
  }
}
inline bool holds(std::span<const std::byte> bytes, uint64_t seed) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    if (std::memcmp(bytes.data() + i, &state, 8) != 0) return false;
  }
  return true;
}

/// Polls until `count` completions of `queue` are there; fewer only after half a minute. (Nobody is
/// notified when a paced store's completion falls due: polled often, thousands are over in
/// seconds.)
inline std::vector<StoreCompletion> await(Store& store, Clock& clock, unsigned queue,
                                          size_t count) {
  std::vector<StoreCompletion> all;
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (all.size() < count && std::chrono::steady_clock::now() < end) {
    StoreCompletion some[8];
    size_t got = store.poll(queue, some);
    for (size_t i = 0; i < got; ++i) all.push_back(std::move(some[i]));
    if (got == 0) clock.wait(50'000);
  }
  return all;
}

inline StoreCompletion await_one(Store& store, Clock& clock, unsigned queue = 0) {
  std::vector<StoreCompletion> one = await(store, clock, queue, 1);
  if (one.size() == 1) return one[0];
  StoreCompletion none;
  none.error = make_error(Code::lost, 0, "no completion came");
  return none;
}

inline StoreCompletion write_now(Store& store, Clock& clock, Slot slot,
                                 std::span<const std::byte> bytes) {
  Result<void> begun = store.write(0, slot, bytes, 7);
  if (begun) return await_one(store, clock);
  StoreCompletion refused;
  refused.error = begun.error();
  return refused;
}

inline StoreCompletion read_now(Store& store, Clock& clock, Slot slot, std::span<std::byte> bytes) {
  Result<void> begun = store.read(0, slot, bytes, 7);
  if (begun) return await_one(store, clock);
  StoreCompletion refused;
  refused.error = begun.error();
  return refused;
}

/// System calls that fail where the test says so.
class FaultyCalls : public FileCalls {
 public:
  std::function<ssize_t(const FileCall&)> at_begin;
  std::function<ssize_t(const FileCall&, ssize_t)> at_end;
  std::function<int(int fd, uint64_t offset, uint64_t bytes)> at_fallocate;
  uint64_t file_limit = UINT64_MAX;

  ssize_t begin(const FileCall& call) override {
    std::lock_guard lock(mutex_);
    ++begun;
    return at_begin ? at_begin(call) : FileCalls::begin(call);
  }
  ssize_t end(const FileCall& call, ssize_t result) override {
    std::lock_guard lock(mutex_);
    return at_end ? at_end(call, result) : result;
  }
  int fallocate(int fd, uint64_t offset, uint64_t bytes) override {
    if (at_fallocate)
      if (int result = at_fallocate(fd, offset, bytes)) return result;
    return FileCalls::fallocate(fd, offset, bytes);
  }
  uint64_t file_bytes_max() override { return std::min(file_limit, FileCalls::file_bytes_max()); }
  uint64_t begun = 0;

 private:
  std::mutex mutex_;
};

/// A store with staging attached, ready for the tests.
struct OpenStore {
  StepClock steps;
  Clock* clock = &wall_clock();
  std::unique_ptr<StagingMemory> staging;
  std::unique_ptr<Store> store;  // goes before the staging it uses

  std::span<std::byte> piece(size_t offset, size_t bytes) {
    return staging->bytes().subspan(offset, bytes);
  }
};

inline std::string kind_name(StoreOptions::Kind kind) {
  return kind == StoreOptions::Kind::io_uring ? "io_uring" : "threads";
}

inline void add_staging(OpenStore& open, size_t bytes) {
  Result<StagingMemory> region = StagingMemory::create(bytes);
  ASSERT_TRUE(region) << describe(region.error());
  open.staging = std::make_unique<StagingMemory>(std::move(*region));
  Result<void> attached = open.store->attach_staging(open.staging->bytes());
  ASSERT_TRUE(attached) << describe(attached.error());
}

inline StoreOptions small_options(const std::string& dir, StoreOptions::Kind kind) {
  StoreOptions options;
  options.kind = kind;
  options.dirs = {dir};
  options.request_bytes = 256 << 10;
  options.depth = 8;
  options.grow_bytes = 8 << 20;
  options.allow_tmpfs = true;  // wherever the tests happen to run
  return options;
}

}  // namespace firn::testing_store
