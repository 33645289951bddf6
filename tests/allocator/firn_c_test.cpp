// The C API as a program uses it: libfirn on the software GPU's wall clock, with real spill files.
#include "firn/firn.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "firn/cuda_abi.h"
#include "firn/software_gpu.h"
#include "tests/scarce_memory.h"

namespace {

/// The driver as a program would have it, beside Firn's own use of it.
struct Program {
  decltype(&firnGpuKernelCreate) kernel_create;
  decltype(&firnGpuCounts) counts;
  CUresult (*init)(unsigned);
  CUresult (*retain)(CUcontext*, CUdevice);
  CUresult (*set_current)(CUcontext);
  CUresult (*synchronize)();
  CUresult (*stream_create)(CUstream*, unsigned);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     CUstream, void**, void**);
  void* handle;
  CUcontext context = nullptr;
  void* fill = nullptr;
  void* verify = nullptr;

  template <class T>
  void get(T& into, const char* name) {
    into = reinterpret_cast<T>(::dlsym(handle, name));
    if (!into) std::abort();
  }
  Program();
};

std::atomic<uint64_t> wrong{0};

void fill_kernel(void** params, const unsigned*, const unsigned*) {
  auto* words = *static_cast<uint64_t**>(params[0]);
  uint64_t count = *static_cast<uint64_t*>(params[1]), seed = *static_cast<uint64_t*>(params[2]);
  for (uint64_t i = 0; i < count; ++i) words[i] = seed * 0x9E3779B97F4A7C15ull + i;
}
void verify_kernel(void** params, const unsigned*, const unsigned*) {
  auto* words = *static_cast<uint64_t**>(params[0]);
  uint64_t count = *static_cast<uint64_t*>(params[1]), seed = *static_cast<uint64_t*>(params[2]);
  for (uint64_t i = 0; i < count; ++i)
    if (words[i] != seed * 0x9E3779B97F4A7C15ull + i) wrong.fetch_add(1);
}
const unsigned layout[][2] = {{0, 8}, {8, 8}, {16, 8}, {0, 0}};

Program::Program() {
  handle = ::dlopen(std::getenv("FIRN_TEST_GPU"), RTLD_NOW);
  if (!handle) std::abort();
  get(kernel_create, "firnGpuKernelCreate");
  get(counts, "firnGpuCounts");
  get(init, "cuInit");
  get(retain, "cuDevicePrimaryCtxRetain");
  get(set_current, "cuCtxSetCurrent");
  get(synchronize, "cuCtxSynchronize");
  get(stream_create, "cuStreamCreate");
  get(stream_synchronize, "cuStreamSynchronize");
  get(launch, "cuLaunchKernel");
  if (init(0) != CUDA_SUCCESS || retain(&context, 0) != CUDA_SUCCESS ||
      set_current(context) != CUDA_SUCCESS ||
      kernel_create("fill", fill_kernel, layout, &fill) != 0 ||
      kernel_create("verify", verify_kernel, layout, &verify) != 0)
    std::abort();
}

Program& program() {
  static Program* p = new Program;
  return *p;
}

void run_kernel(void* kernel, void* block, size_t bytes, uint64_t seed, CUstream stream) {
  uint64_t count = bytes / 8;
  void* params[] = {&block, &count, &seed};
  ASSERT_EQ(program().launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr), CUDA_SUCCESS);
}

const std::string& spill_dir() {
  static const std::string& dir = *new std::string([] {
    // Not where the tests run: one that is killed leaves nothing there.
    std::string pattern = (std::filesystem::temp_directory_path() / "firn-c-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) std::abort();
    std::atexit([] { std::filesystem::remove_all(spill_dir()); });
    return pattern;
  }());
  return dir;  // never destroyed: looked at in an exit handler
}

/// Further words for firn_init, of a process that a test here starts.
constexpr const char* more_words = "FIRN_TEST_C_MORE";

std::string oom_page() { return spill_dir() + "/oom.html"; }

class FirnC : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EXPECT_EQ(firn_init("firn_budget:10XB"), FIRN_INVALID_ARGUMENT);
    EXPECT_NE(std::string(firn_error()).find("firn_budget"), std::string::npos);
    EXPECT_EQ(firn_init("firn_nonsense:1"), FIRN_INVALID_ARGUMENT);
    std::string missing = std::string("firn_dir:/no/such/place,firn_driver:") +
                          std::getenv("FIRN_TEST_GPU");
    EXPECT_EQ(firn_init(missing.c_str()), FIRN_INVALID_ARGUMENT) << firn_error();
    std::string conf =
        "firn_budget:96MiB,firn_host:48MiB,firn_watch:0,firn_test_allow_tmpfs:1,firn_dir:" +
        spill_dir() + ",firn_oom_page:" + oom_page() +
        ",firn_driver:" + std::getenv("FIRN_TEST_GPU");
    if (const char* more = std::getenv(more_words)) conf += std::string(",") + more;
    ASSERT_EQ(firn_init(conf.c_str()), FIRN_OK) << firn_error();
    (void)program();
  }
};

nlohmann::json stats() {
  std::string text(firn_stats(nullptr, 0) + 1, 0);
  while (firn_stats(text.data(), text.size()) >= text.size()) text.resize(2 * text.size());
  return nlohmann::json::parse(text.c_str());
}

}  // namespace

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

namespace {

/// The threads of this process whose names begin so, and which signals each of them takes; without
/// the numbers at their ends ("firn-io", of "firn-io-0").
std::map<std::string, std::string> signals_taken(const std::string& begin) {
  std::map<std::string, std::string> taken;
  std::error_code gone;  // a thread that ended meanwhile
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream status(task.path() / "status");
    std::string line, name;
    for (uint64_t blocked; std::getline(status, line);) {
      if (line.starts_with("Name:\t")) name = line.substr(6);
      if (!line.starts_with("SigBlk:\t") || !name.starts_with(begin)) continue;
      blocked = std::stoull(line.substr(8), nullptr, 16);
      name.resize(name.find_last_not_of("-0123456789") + 1);
      std::string of;
      for (int signal = 1; signal < 65; ++signal)
        if (signal != SIGKILL && signal != SIGSTOP && signal != 32 && signal != 33 &&  // glibc's
            !(blocked >> (signal - 1) & 1))
          of += " " + std::to_string(signal);
      // (A worker of the software GPU's that one of ours started has its name: it takes what a
      // kernel raises, just these.)
      if (of != " 4 6 7 8 11") taken[name] += of;
    }
  }
  return taken;
}

/// Three times the budget, written and read, until `over`.
void spill_on(const std::atomic<bool>& over) {
  ASSERT_EQ(program().set_current(program().context), CUDA_SUCCESS);
  constexpr size_t bytes = 8u << 20;
  while (!over) {
    void* block[36] = {};
    for (void*& each : block) {
      ASSERT_EQ(firn_malloc(&each, bytes, 0, nullptr), FIRN_OK) << firn_error();
      ASSERT_EQ(firn_touch(&each, nullptr, 1, nullptr), FIRN_OK) << firn_error();
      run_kernel(program().fill, each, bytes, 3, nullptr);
    }
    for (void*& each : block) {
      ASSERT_EQ(firn_touch(&each, nullptr, 1, nullptr), FIRN_OK) << firn_error();
      run_kernel(program().verify, each, bytes, 3, nullptr);
    }
    firn_launched();
    for (void* each : block) ASSERT_EQ(firn_free(each, nullptr), FIRN_OK) << firn_error();
  }
  ASSERT_EQ(program().synchronize(), CUDA_SUCCESS);
}

}  // namespace

// A signal is for the program's own threads: one of ours that took it would run the program's
// handler, with our locks held. While blocks go out and come back all of our threads are looked at.
TEST_F(FirnC, no_thread_of_firns_takes_a_signal) {
  std::set<std::string> wanted = {"firn-pump", "firn-io", "firn-control", "firn-slow-work"};
  if (const char* more = std::getenv(more_words)) {
    const auto want = [&](const char* word, const char* name) {
      if (std::strstr(more, word)) wanted.insert(name);
    };
    want("firn_encrypt:1", "firn-cipher");
    want("firn_trace:", "firn-trace");
    want("firn_metrics:", "firn-metrics");
  }
  std::atomic<bool> over{false};
  std::thread spilling([&] { spill_on(over); });
  std::map<std::string, std::string> seen;
  using Time = std::chrono::steady_clock;
  const auto least = Time::now() + std::chrono::milliseconds(500);
  const auto most = Time::now() + std::chrono::seconds(20);
  const auto all_met = [&] {
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](const std::string& name) { return seen.contains(name); });
  };
  while (Time::now() < most && (Time::now() < least || !all_met())) {
    for (const auto& [name, taken] : signals_taken("firn-")) seen[name] += taken;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  over = true;
  spilling.join();
  for (const std::string& name : wanted) EXPECT_TRUE(seen.contains(name)) << name << " is not met";
  std::string met;
  for (const auto& [name, taken] : seen) {
    met += " " + name;
    EXPECT_EQ(taken.substr(0, 200), "") << name << " takes these signals";
  }
  std::printf("threads that were met:%s\n", met.c_str());
  EXPECT_EQ(wrong.load(), 0u);
}

TEST_F(FirnC, nor_does_one_of_what_may_be_asked_for) {
  if (std::getenv(more_words)) GTEST_SKIP() << "within itself";
  std::string folder = (std::filesystem::temp_directory_path() / "firn-c-more-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string more = "firn_encrypt:1,firn_metrics:" + folder + "/metrics,firn_trace:" +
                           folder + "/trace";
  const std::string command =
      std::string(more_words) + "='" + more + "' '" +
      std::filesystem::read_symlink("/proc/self/exe").string() +
      "' --gtest_filter=FirnC.no_thread_of_firns_takes_a_signal";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::filesystem::remove_all(folder);
}
