// A store that notes its requests and answers them when a test says so. It keeps no byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "firn/store.h"

namespace firn::test {

class FakeStore : public Store {
 public:
  struct Request {
    StoreCompletion::Kind kind;
    Slot slot;
    const std::byte* bytes;
    size_t length;
    uint64_t tag;
  };
  std::vector<Request> requests;       // not answered yet
  bool refuses = false;                // requests
  bool cancels = false;                // what is not answered
  Code no_slot = Code::ok;             // what reserve() answers instead of a slot
  std::vector<Slot> discarded;
  size_t attached = 0;                 // bytes of staging

  Result<void> attach_staging(std::span<std::byte> bytes) override {
    attached += bytes.size();
    return {};
  }
  void detach_staging(std::span<std::byte> bytes) override { attached -= bytes.size(); }
  Result<Slot> reserve(size_t, bool) override {
    if (no_slot != Code::ok) return make_error(no_slot, 0, "no slot, in a test");
    return Slot{++slots_};
  }
  Result<void> write(unsigned, Slot slot, std::span<const std::byte> bytes,
                     uint64_t tag) override {
    return take({StoreCompletion::Kind::write, slot, bytes.data(), bytes.size(), tag});
  }
  Result<void> read(unsigned, Slot slot, std::span<std::byte> bytes, uint64_t tag) override {
    return take({StoreCompletion::Kind::read, slot, bytes.data(), bytes.size(), tag});
  }
  bool cancel(unsigned, uint64_t tag) override {
    return cancels && std::erase_if(requests, [&](const Request& r) { return r.tag == tag; }) > 0;
  }
  void discard(Slot slot) override { discarded.push_back(slot); }
  size_t poll(unsigned, std::span<StoreCompletion> out) override {
    size_t count = 0;
    for (; count < out.size() && !answers_.empty(); ++count) {
      out[count] = std::move(answers_.front());
      answers_.pop_front();
    }
    return count;
  }
  StoreStats stats() const override { return {}; }
  void abandon() override {}

  void answer(size_t index, Error error = {}, std::optional<Sum> sum = {}) {
    const Request request = requests.at(index);
    requests.erase(requests.begin() + static_cast<ptrdiff_t>(index));
    StoreCompletion completion;
    completion.tag = request.tag;
    completion.kind = request.kind;
    completion.slot = request.slot;
    completion.error = std::move(error);
    completion.sum = sum;
    answers_.push_back(std::move(completion));
  }

 private:
  Result<void> take(Request request) {
    if (refuses) return make_error(Code::io, 0, "not begun, in a test");
    requests.push_back(request);
    return {};
  }
  uint32_t slots_ = 0;
  std::deque<StoreCompletion> answers_;
};

}  // namespace firn::test
