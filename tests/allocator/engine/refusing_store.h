// A store in front of another one that a test has refuse what it is asked for, or spoil an answer.
#pragma once

#include <span>

#include "firn/store.h"

namespace firn::test {

class RefusingStore : public Store {
 public:
  explicit RefusingStore(Store& store) : store_(store) {}

  unsigned writes_refused = 0, reads_refused = 0;  // so many more of them do not begin
  unsigned slots_busy = 0;                         // nor are reserved at once
  unsigned reads_spoilt = 0;                       // so many more of them end in this:
  Code spoilt = Code::corrupt;
  bool tells_sums = true;
  unsigned reads = 0, writes = 0;  // that were asked for

  Result<void> attach_staging(std::span<std::byte> staging) override {
    return store_.attach_staging(staging);
  }
  void detach_staging(std::span<std::byte> staging) override { store_.detach_staging(staging); }
  Result<Slot> reserve(size_t bytes, bool wait) override {
    if (take(slots_busy)) return make_error(Code::busy, 0, "the file grows, in a test");
    return store_.reserve(bytes, wait);
  }
  Result<void> write(unsigned queue, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override {
    ++writes;
    if (take(writes_refused)) return refused();
    return store_.write(queue, slot, bytes, tag);
  }
  Result<void> read(unsigned queue, Slot slot, std::span<std::byte> bytes,
                    uint64_t tag) override {
    ++reads;
    if (take(reads_refused)) return refused();
    return store_.read(queue, slot, bytes, tag);
  }
  bool cancel(unsigned queue, uint64_t tag) override { return store_.cancel(queue, tag); }
  void discard(Slot slot) override { store_.discard(slot); }
  std::optional<bool> holds(Slot slot, std::span<const std::byte> bytes) const override {
    return store_.holds(slot, bytes);
  }
  size_t poll(unsigned queue, std::span<StoreCompletion> out) override {
    const size_t count = store_.poll(queue, out);
    for (StoreCompletion& each : out.first(count)) {
      if (!tells_sums) each.sum.reset();
      if (each.kind == StoreCompletion::Kind::read && take(reads_spoilt))
        each.error = make_error(spoilt, 0, "spoilt, in a test");
    }
    return count;
  }
  StoreStats stats() const override { return store_.stats(); }
  void abandon() override { store_.abandon(); }

 private:
  static bool take(unsigned& left) { return left > 0 && left-- > 0; }
  static Error refused() { return make_error(Code::io, 0, "not begun, in a test"); }
  Store& store_;
};

}  // namespace firn::test
