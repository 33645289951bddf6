// Every store against a model of what each slot holds, with random requests. FIRN_SEED=n replays
// one seed.
#include <map>

#include "tests/backing/store/every_store.h"

namespace firn::testing_store {
namespace {

class StoreModel : public EveryStore {
 protected:
  void fuzz(uint64_t seed);
};

/// Random requests on two queues against a model of what each slot holds.
void StoreModel::fuzz(uint64_t seed) {
  SCOPED_TRACE("replay: FIRN_SEED=" + std::to_string(seed) +
               " store_model_test --gtest_filter=*follows_the_model*");
  struct Held {
    size_t bytes = 0;
    uint64_t content = 0;
    size_t staging = SIZE_MAX;
    bool busy = false;
  };
  constexpr size_t piece = 1u << 20, pieces = 32;
  std::mt19937_64 random(seed);
  std::map<uint32_t, Held> held;
  std::vector<size_t> idle;
  for (size_t i = 0; i < pieces; ++i) idle.push_back(i);
  struct Asked {
    uint32_t slot;
    size_t staging;
    uint64_t content;
    bool write;
    bool gone = false;
    size_t bytes;
  };
  std::map<uint64_t, Asked> asked[2];
  uint64_t tag = 0, contents = seed << 20;
  auto over = [&](unsigned queue, StoreCompletion& done) {
    auto found = asked[queue].find(done.tag);
    ASSERT_NE(found, asked[queue].end()) << "unknown or twice: " << done.tag;
    Asked& request = found->second;
    ASSERT_EQ(done.error.code, Code::ok) << describe(done.error);
    if (!request.write) {
      ASSERT_TRUE(holds(open_.piece(request.staging * piece, request.bytes), request.content));
    }
    if (!request.gone) {
      held[request.slot].busy = false;
      if (request.write) held[request.slot].content = request.content;
    }
    idle.push_back(request.staging);
    asked[queue].erase(found);
  };
  auto drain = [&](bool all) {
    for (unsigned queue : {0u, 1u}) {
      size_t want = all ? asked[queue].size() : 0;
      StoreCompletion some[4];
      size_t got = all ? 0 : store().poll(queue, some);
      for (size_t i = 0; i < got; ++i) over(queue, some[i]);
      if (all)
        for (auto& done : await(store(), clock(), queue, want)) over(queue, done);
    }
  };
  for (int step = 0; step < 400 && !HasFatalFailure(); ++step) {
    auto pick = held.begin();
    if (!held.empty()) std::advance(pick, static_cast<ptrdiff_t>(random() % held.size()));
    unsigned queue = random() % 2;
    switch (random() % 10) {
      case 0:
      case 1: {
        size_t bytes = (1 + random() % (piece / 4096)) * 4096;
        held[reserve(bytes).id].bytes = bytes;
        break;
      }
      case 2:
      case 3:
      case 4:
      case 5:
      case 6: {
        if (held.empty() || pick->second.busy || idle.empty()) break;
        bool write = pick->second.content == 0 || random() % 2;
        Asked request{pick->first, idle.back(), write ? ++contents : pick->second.content,
                      write,       false,       pick->second.bytes};
        idle.pop_back();
        std::span<std::byte> bytes = open_.piece(request.staging * piece, request.bytes);
        if (write) fill(bytes, request.content);
        asked[queue][++tag] = request;
        pick->second.busy = true;
        Result<void> begun = write ? store().write(queue, Slot{pick->first}, bytes, tag)
                                   : store().read(queue, Slot{pick->first}, bytes, tag);
        ASSERT_TRUE(begun) << describe(begun.error());
        break;
      }
      case 7: {
        if (asked[queue].empty()) break;
        auto found = asked[queue].begin();
        std::advance(found, static_cast<ptrdiff_t>(random() % asked[queue].size()));
        if (!store().cancel(queue, found->first)) break;
        idle.push_back(found->second.staging);
        if (!found->second.gone) held[found->second.slot].busy = false;
        asked[queue].erase(found);
        break;
      }
      case 8: {
        if (held.empty()) break;
        store().discard(Slot{pick->first});
        for (auto& each : asked)
          for (auto& [number, request] : each)
            if (request.slot == pick->first) request.gone = true;
        held.erase(pick);
        break;
      }
      default:
        drain(random() % 4 == 0);
    }
  }
  drain(true);
  uint64_t bytes = 0;
  for (auto& [id, each] : held) bytes += each.bytes;
  EXPECT_EQ(store().stats().slots_in_use, held.size());
  EXPECT_EQ(store().stats().slot_bytes_in_use, bytes);
  for (auto& [id, each] : held) {
    if (each.content) {
      std::span<std::byte> back = open_.piece(0, each.bytes);
      ASSERT_EQ(read_now(store(), clock(), Slot{id}, back).error.code, Code::ok);
      EXPECT_TRUE(holds(back, each.content));
    }
    store().discard(Slot{id});
  }
}

TEST_P(StoreModel, follows_the_model) {
  if (const char* seed = std::getenv("FIRN_SEED")) return fuzz(std::strtoull(seed, nullptr, 10));
  for (uint64_t seed = 1; seed <= 15 && !HasFailure(); ++seed) fuzz(seed);
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreModel, every_kind, name_of);

}  // namespace
}  // namespace firn::testing_store
