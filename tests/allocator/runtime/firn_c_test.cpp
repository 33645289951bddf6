// The C API as a program uses it: libfirn on the software GPU's wall clock, with real spill files.
#include "tests/allocator/runtime/firn_c_fixture.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/scarce_memory.h"

using namespace firn::test_c;

TEST_F(FirnC, a_touch_that_there_is_no_memory_for_holds_nothing) {
  constexpr size_t bytes = 40u << 20;  // two fit
  for (const long given : {0, 1}) {
    void* block[3] = {};
    for (int i = 0; i < 2; ++i)
      ASSERT_EQ(firn_malloc(&block[i], bytes, 0, nullptr), FIRN_OK) << firn_error();
    ASSERT_EQ(firn_touch(block, nullptr, 2, nullptr), FIRN_OK) << firn_error();
    firn_launched();
    std::thread([&] {  // that has announced nothing so far
      firn::test::memory_left = given;
      const int status = firn_touch(block, nullptr, 2, nullptr);
      firn::test::memory_left = -1;
      if (given == 0) {
        EXPECT_EQ(status, FIRN_HOST_OUT_OF_MEMORY);
      }
      if (status == FIRN_OK) firn_launched();
      EXPECT_EQ(firn_malloc(&block[2], bytes, 0, nullptr), FIRN_OK)
          << given << ": one of the others may leave: " << firn_error();
    }).join();
    for (void* each : block) EXPECT_EQ(firn_free(each, nullptr), FIRN_OK);
  }
}

TEST_F(FirnC, twice_the_budget_with_every_byte_right) {
  constexpr int blocks = 24;
  constexpr size_t bytes = 8u << 20;
  void* block[blocks] = {};
  for (int i = 0; i < blocks; ++i) {
    ASSERT_EQ(firn_malloc(&block[i], bytes, 0, nullptr), FIRN_OK) << firn_error();
    ASSERT_EQ(firn_touch(&block[i], nullptr, 1, nullptr), FIRN_OK) << firn_error();
    run_kernel(program().fill, block[i], bytes, static_cast<uint64_t>(i + 1), nullptr);
  }
  const int read = FIRN_READ;
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < blocks; ++i) {
      ASSERT_EQ(firn_touch(&block[i], &read, 1, nullptr), FIRN_OK) << firn_error();
      run_kernel(program().verify, block[i], bytes, static_cast<uint64_t>(i + 1), nullptr);
    }
  firn_launched();
  ASSERT_EQ(program().synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(wrong.load(), 0u);
  nlohmann::json s = stats();
  EXPECT_GT(s["store"]["written_bytes"].get<uint64_t>(), 0u);
  EXPECT_GT(s["store"]["read_bytes"].get<uint64_t>(), 0u);
  EXPECT_EQ(s["devices"][0]["lost_blocks"], 0);
  FirnGpuCounts counts{};
  ASSERT_EQ(program().counts(0, &counts), 0);
  EXPECT_LE(counts.frame_bytes_peak, 96u << 20);
  for (void* b : block) EXPECT_EQ(firn_free(b, nullptr), FIRN_OK);
  EXPECT_EQ(firn_free(block[0], nullptr), FIRN_INVALID_ARGUMENT);
  EXPECT_EQ(firn_free(&counts, nullptr), FIRN_INVALID_ARGUMENT);
  EXPECT_TRUE(std::filesystem::is_empty(spill_dir()));
}

TEST_F(FirnC, a_working_set_above_the_budget_is_refused_and_nothing_is_held) {
  void* block[16] = {};
  for (void*& b : block) {
    ASSERT_EQ(firn_malloc(&b, 8u << 20, 0, nullptr), FIRN_OK) << firn_error();
    ASSERT_EQ(firn_touch(&b, nullptr, 1, nullptr), FIRN_OK) << firn_error();
  }
  ASSERT_EQ(firn_touch(block, nullptr, 16, nullptr), FIRN_OUT_OF_MEMORY);
  EXPECT_NE(std::string(firn_error()).find("firn_budget"), std::string::npos) << firn_error();
  ASSERT_EQ(firn_touch(block, nullptr, 8, nullptr), FIRN_OK) << firn_error();
  firn_launched();
  for (void* b : block) EXPECT_EQ(firn_free(b, nullptr), FIRN_OK);
}

TEST_F(FirnC, each_refusal_counts_once_and_there_is_a_page) {
  const auto refused = [] { return stats()["devices"][0]["out_of_memory"].get<int>(); };
  void* block[13] = {};
  ASSERT_EQ(firn_malloc(&block[0], 8u << 20, 0, nullptr), FIRN_OK) << firn_error();
  const int before = refused();  // of a device that is open now
  for (void*& b : block) {
    if (!b) {
      ASSERT_EQ(firn_malloc(&b, 8u << 20, 0, nullptr), FIRN_OK) << firn_error();
    }
    ASSERT_EQ(firn_touch(&b, nullptr, 1, nullptr), FIRN_OK) << firn_error();
  }
  EXPECT_EQ(refused(), before);
  void* large = nullptr;
  EXPECT_EQ(firn_malloc(&large, 200u << 20, 0, nullptr), FIRN_OUT_OF_MEMORY);
  EXPECT_EQ(refused(), before + 1);
  EXPECT_TRUE(std::filesystem::exists(oom_page())) << "of the process's first refusal";
  EXPECT_EQ(firn_touch(block, nullptr, 13, nullptr), FIRN_OUT_OF_MEMORY);
  EXPECT_EQ(refused(), before + 2);
  for (int i = 0; i < 12; ++i) ASSERT_EQ(firn_pin(block[i]), FIRN_OK) << firn_error();
  EXPECT_EQ(firn_pin(block[12]), FIRN_OUT_OF_MEMORY);
  EXPECT_EQ(refused(), before + 3);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(firn_unpin(block[i]), FIRN_OK) << firn_error();
  for (void* b : block) EXPECT_EQ(firn_free(b, nullptr), FIRN_OK);
}

// Threads with a stream each, all over the budget together, blocks handed from one to another.
TEST_F(FirnC, threads_under_pressure) {
  constexpr int threads = 4, rounds = 150;
  std::vector<std::thread> pool;
  std::atomic<int> refused{0};
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      ASSERT_EQ(program().set_current(program().context), CUDA_SUCCESS);
      CUstream stream = nullptr;
      ASSERT_EQ(program().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
      std::mt19937_64 random(static_cast<uint64_t>(t) + 17);
      struct Mine {
        void* block;
        size_t bytes;
        uint64_t seed;
      };
      std::vector<Mine> mine;
      for (int i = 0; i < rounds; ++i) {
        if (mine.size() < 5) {
          Mine m{nullptr, (random() % 2 ? 5u << 20 : 3000 + random() % (9u << 20)) / 8 * 8,
                 random()};
          if (firn_malloc(&m.block, m.bytes, 0, stream) != FIRN_OK) {
            ++refused;
            ADD_FAILURE() << firn_error();
            continue;
          }
          ASSERT_EQ(firn_touch(&m.block, nullptr, 1, stream), FIRN_OK) << firn_error();
          run_kernel(program().fill, m.block, m.bytes, m.seed, stream);
          firn_launched();
          mine.push_back(m);
        }
        Mine& m = mine[random() % mine.size()];
        const int read = FIRN_READ;
        ASSERT_EQ(firn_touch(&m.block, &read, 1, stream), FIRN_OK) << firn_error();
        run_kernel(program().verify, m.block, m.bytes, m.seed, stream);
        firn_launched();
        if (random() % 4 == 0) {
          ASSERT_EQ(firn_free(m.block, stream), FIRN_OK) << firn_error();
          m = mine.back();
          mine.pop_back();
        }
      }
      for (Mine& m : mine) ASSERT_EQ(firn_free(m.block, stream), FIRN_OK);
      ASSERT_EQ(program().stream_synchronize(stream), CUDA_SUCCESS);
    });
  for (std::thread& thread : pool) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(refused.load(), 0);
}

/// Hands the way back of an iteration to another thread, as autograd does.
class Backward {
 public:
  explicit Backward(std::function<void()> work) : work_(std::move(work)), thread_([this] { run(); }) {}
  ~Backward() {
    turn_.store(ended);
    turn_.notify_all();
    thread_.join();
  }
  void operator()() {
    turn_.store(theirs);
    turn_.notify_all();
    turn_.wait(theirs);
  }

 private:
  enum Turn { ours, theirs, ended };
  void run() {
    ASSERT_EQ(program().set_current(program().context), CUDA_SUCCESS);
    for (;;) {
      turn_.wait(ours);
      if (turn_.load() == ended) return;
      work_();
      turn_.store(ours);
      turn_.notify_all();
    }
  }
  std::function<void()> work_;
  std::atomic<Turn> turn_{ours};
  std::thread thread_;
};

// An iteration that repeats, at the edge of the budget, its way back in another thread, while a
// third looks at it and has memory of its own on a stream of its own.
TEST_F(FirnC, planned_places_and_threads) {
  struct Made {
    void* block = nullptr;
    size_t bytes = 0;
    uint64_t seed = 0;
  };
  std::atomic<uint64_t> seeds{1};
  const auto make = [&](size_t bytes, firn_stream stream = nullptr) {
    Made made{nullptr, bytes, seeds++};
    EXPECT_EQ(firn_malloc(&made.block, bytes, 0, stream), FIRN_OK) << firn_error();
    EXPECT_EQ(firn_touch(&made.block, nullptr, 1, stream), FIRN_OK) << firn_error();
    run_kernel(program().fill, made.block, bytes, made.seed, static_cast<CUstream>(stream));
    firn_launched();
    return made;
  };
  const auto read = [&](Made& made, firn_stream stream = nullptr) {
    const int access = FIRN_READ;
    EXPECT_EQ(firn_touch(&made.block, &access, 1, stream), FIRN_OK) << firn_error();
    run_kernel(program().verify, made.block, made.bytes, made.seed, static_cast<CUstream>(stream));
    firn_launched();
  };
  std::mt19937_64 random(5);
  std::vector<size_t> kept_bytes, gone_bytes;
  for (int i = 0; i < 9; ++i) {
    kept_bytes.push_back((5u << 20) + random() % (5u << 20) / 512 * 512);
    gone_bytes.push_back((2u << 20) + random() % (6u << 20) / 512 * 512);
  }
  // At its peak it takes nearly the budget: the weights, all that is kept, one that is gone.
  for (size_t i = 0, sum = 0; i < 9; sum += kept_bytes[i++])
    if (i == 8) kept_bytes[i] = (68u << 20) - sum;
  std::vector<Made> weights, kept;
  for (int i = 0; i < 3; ++i) weights.push_back(make(4u << 20));
  Backward backward([&] {
    for (size_t i = kept.size(); i-- > 0;) {
      Made gone = make(gone_bytes[i]);
      read(kept[i]);
      read(weights[i % 3]);
      EXPECT_EQ(firn_free(kept[i].block, nullptr), FIRN_OK);
      read(gone);
      EXPECT_EQ(firn_free(gone.block, nullptr), FIRN_OK);
    }
    kept.clear();
  });
  std::atomic<bool> over{false};
  std::thread looking([&] {
    ASSERT_EQ(program().set_current(program().context), CUDA_SUCCESS);
    CUstream stream = nullptr;
    ASSERT_EQ(program().stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    Made own = make(1u << 20, stream);
    while (!over) {
      (void)stats();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    read(own, stream);
    EXPECT_EQ(firn_free(own.block, stream), FIRN_OK);
    EXPECT_EQ(program().stream_synchronize(stream), CUDA_SUCCESS);
  });
  const uint64_t given = stats()["devices"][0]["places"]["given"];
  for (int step = 0; step < 40; ++step) {
    for (size_t i = 0; i < kept_bytes.size(); ++i) {
      Made gone = make(gone_bytes[i]);
      kept.push_back(make(kept_bytes[i]));
      read(weights[i % 3]);
      read(gone);
      EXPECT_EQ(firn_free(gone.block, nullptr), FIRN_OK);
    }
    backward();
    if (step == 25) std::swap(kept_bytes[2], kept_bytes[7]);  // and on it goes, otherwise
  }
  over = true;
  looking.join();
  for (Made& weight : weights) EXPECT_EQ(firn_free(weight.block, nullptr), FIRN_OK);
  ASSERT_EQ(program().synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(stats()["devices"][0]["places"]["given"], given) << stats()["devices"][0].dump(1);
}

TEST_F(FirnC, hints_and_pins) {
  void* block = nullptr;
  ASSERT_EQ(firn_malloc(&block, 8u << 20, 0, nullptr), FIRN_OK);
  ASSERT_EQ(firn_touch(&block, nullptr, 1, nullptr), FIRN_OK);
  run_kernel(program().fill, block, 8u << 20, 5, nullptr);
  firn_launched();
  EXPECT_EQ(firn_cold(block, 8u << 20), FIRN_OK) << firn_error();
  EXPECT_EQ(firn_prefetch(block, 8u << 20, nullptr), FIRN_OK) << firn_error();
  // Others' memory in the range is skipped, also at its beginning; but there has to be a block.
  void* before = nullptr;
  EXPECT_EQ(firn_prefetch(before, SIZE_MAX, nullptr), FIRN_OK) << firn_error();
  EXPECT_EQ(firn_cold(before, SIZE_MAX), FIRN_OK) << firn_error();
  EXPECT_EQ(firn_prefetch(before, 8u << 20, nullptr), FIRN_INVALID_ARGUMENT);
  EXPECT_EQ(firn_cold(&before, sizeof before), FIRN_INVALID_ARGUMENT);
  EXPECT_EQ(firn_pin(block), FIRN_OK) << firn_error();
  bool named = false;
  nlohmann::json s = stats();
  for (const auto& pinned : s["devices"][0]["pinned"]) named |= pinned["reason"] == "firn_pin()";
  EXPECT_TRUE(named) << s.dump(1);
  EXPECT_EQ(firn_unpin(block), FIRN_OK) << firn_error();
  const int read = FIRN_READ;
  ASSERT_EQ(firn_touch(&block, &read, 1, nullptr), FIRN_OK);
  run_kernel(program().verify, block, 8u << 20, 5, nullptr);
  firn_launched();
  ASSERT_EQ(program().synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(firn_free(block, nullptr), FIRN_OK);
}
