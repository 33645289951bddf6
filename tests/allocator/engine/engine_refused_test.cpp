// From its nth call on the driver refuses everything, or the device ends, in three jobs, for each n
// up to 32 and in steps of a 32nd from there (every n with FIRN_TEST_LENGTH=long): each call of
// the engine's is answered within a second, in the driver's words where it fails; nothing aborts,
// and the engine's own end is as quick.
#include <gtest/gtest.h>

#include <malloc.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <new>
#include <vector>

#include "tests/allocator/engine/watched.h"

using namespace firn;
using namespace firn::test;

namespace {

constexpr size_t MiB = 1u << 20;

/// A job's calls, each watched by itself. What fails is left out, as by a program that catches it.
class Job {
 public:
  explicit Job(Watched& sim) : other(sim->make_stream(0)), sim_(sim), engine_(sim->engine(0)) {}
  const CUstream other;
  unsigned failed = 0;
  std::string first_failure;

  template <class Call>
  auto does(const char* what, Call&& call) {
    sim_.watch(what);
    auto result = call();
    if (!result) {
      const Error& error = result.error();
      if (failed++ == 0) first_failure = what + (": " + describe(error));
      EXPECT_NE(error.code, Code::lost) << describe(error);
      // Whose words: the driver's name of the error; or that memory is short, of which the driver's
      // refusals are one reason.
      EXPECT_TRUE(error.code == Code::out_of_memory || error.code == Code::invalid_argument ||
                  error.text.find("CUDA_ERROR") != std::string::npos)
          << what << ": " << describe(error);
    }
    return result;
  }
  void* make(size_t bytes, CUstream stream = nullptr) {
    auto made = does("allocate", [&] { return engine_.allocate(bytes, stream); });
    return made ? *made : nullptr;
  }
  void use(void* block, Access access, CUstream stream = nullptr) {
    if (!block) return;
    auto hold = does("touch", [&] { return engine_.touch(block, stream, access); });
    if (!hold) return;
    if (access == Access::write) (void)sim_->fill(0, block, MiB, 1, stream);
    sim_.watch("release");
    engine_.release(*hold, stream);
  }
  void drop(void* block) {
    if (!block) return;
    EXPECT_TRUE(does("free", [&] { return engine_.free(block); }));
  }
  void pump() {
    sim_.watch("pump");
    for (int i = 0; i < 3; ++i) engine_.pump();
  }
  Engine& engine() { return engine_; }
  Watched& sim() { return sim_; }

 private:
  Watched& sim_;
  Engine& engine_;
};

SimulationOptions options(Policy policy) {
  SimulationOptions o;
  o.budget_bytes = 10 * MiB;
  o.host_bytes = 16 * MiB;
  o.span_bytes = 2 * MiB;
  o.policy = policy;
  return o;
}

/// Twice what fits, written, read back, all sent away and read again.
void spills(Job& job) {
  std::vector<void*> blocks;
  for (size_t i = 0; i < 4; ++i) {
    blocks.push_back(job.make(2 * MiB + i * 700'000));
    job.use(blocks.back(), Access::write);
    job.pump();
  }
  for (void* block : blocks) job.use(block, Access::read);
  job.sim().watch("spill_all");
  job.engine().spill_all();
  for (void* block : blocks) job.use(block, Access::write);
  for (void* block : blocks) job.drop(block);
  (void)job.make(1000);
}

/// Iterations whose period is found: what comes next is known, written and fetched ahead.
void repeats(Job& job) {
  for (int round = 0; round < 5; ++round) {
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(job.make(3 * MiB));
      job.use(blocks.back(), Access::write);
      job.pump();
    }
    for (size_t i = blocks.size(); i-- > 0;) {
      job.use(blocks[i], Access::read);
      job.drop(blocks[i]);
      job.pump();
    }
  }
}

/// Two streams, pins, hints, segments, a budget that changes.
void mixes(Job& job) {
  const CUstream other = job.other;
  Engine& engine = job.engine();
  void *a = job.make(3 * MiB), *b = job.make(3 * MiB, other);
  job.use(a, Access::write);
  job.use(b, Access::write, other);
  if (a) (void)job.does("record", [&] { return engine.record_stream(a, other, nullptr); });
  job.drop(a);
  if (b) (void)job.does("cold", [&] { return engine.cold(b, 3 * MiB); });
  void* segment = nullptr;
  if (auto made = job.does("segment", [&] {
        return engine.allocate_segment(4 * MiB, nullptr, false, "a test");
      }))
    segment = *made;
  job.pump();
  if (b) (void)job.does("prefetch", [&] { return engine.prefetch(b, 3 * MiB, nullptr); });
  job.pump();
  if (b) (void)job.does("pin", [&] { return engine.pin(b, "a test"); });
  (void)job.does("budget", [&] { return engine.set_budget(6 * MiB); });
  job.drop(segment);
  job.sim().watch("trim");
  engine.trim();
  job.drop(b);
  engine.stream_ends(other);
}

struct Scenario {
  const char* name;
  Policy policy;
  void (*run)(Job&);
};
const Scenario scenarios[] = {{"spills", Policy::age, spills},
                              {"repeats", Policy::lifetime, repeats},
                              {"mixes", Policy::age, mixes}};

/// Of a scenario's runs, in memory that the processes have in common.
struct Progress {
  uint64_t n, calls, runs, failed;
  bool over;
};

/// The calls that a run is made for: each up to 32, then steps of a 32nd; with --long each.
uint64_t after(uint64_t n) {
  const char* length = std::getenv("FIRN_TEST_LENGTH");
  if (length && std::strcmp(length, "long") == 0) return n + 1;
  return n + 1 + n / 32;
}

/// Calls `step` until all is over, in processes of so many steps each: what a driver that refuses
/// to be given anything back keeps goes with them. (The software GPU is in none but these.)
template <class Step>
void in_processes(const char* what, Step&& step) {
  constexpr int steps_of_a_process = 100;
  void* shared = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& progress = *new (shared) Progress{};
  while (!progress.over && !::testing::Test::HasFailure()) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // The next run has what this one gives back without a page fault: half of its time.
      (void)::mallopt(M_MMAP_THRESHOLD, 64 << 20);
      (void)::mallopt(M_TRIM_THRESHOLD, 1 << 30);
      for (int i = 0; i < steps_of_a_process && !progress.over; ++i) {
        step(progress);
        if (::testing::Test::HasFailure()) break;
      }
      std::fflush(nullptr);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << what << ", call " << progress.n << ": the process ends with signal "
                         << (WIFSIGNALED(status) ? WTERMSIG(status) : 0) << ", status "
                         << (WIFEXITED(status) ? WEXITSTATUS(status) : 0);
  }
  ::munmap(shared, sizeof(Progress));
}

/// `end(sim, n)` begins the refusals at the nth call from there; see after() for which.
template <class End>
void for_every_call(const char* what, End&& end) {
  for (const Scenario& scenario : scenarios) {
    const std::string words = std::string(scenario.name) + ", " + what;
    in_processes(words.c_str(), [&](Progress& progress) {
      const uint64_t n = progress.n;  // 0: nothing is refused
      SCOPED_TRACE(words + ", call " + std::to_string(n));
      Watched sim(options(scenario.policy));
      ASSERT_TRUE(sim->ok()) << sim->error;
      Job job(sim);
      const uint64_t before = sim->gpu().fallible_calls();
      if (n) end(*sim, n);
      scenario.run(job);
      if (!n) progress.calls = sim->gpu().fallible_calls() - before;
      EXPECT_TRUE(n > 0 || job.failed == 0) << job.first_failure;
      progress.runs += n > 0;
      progress.failed += job.failed > 0;
      sim.watch("the end");
      progress.n = after(n);
      if (progress.n <= progress.calls) return;
      std::printf("%s: %llu calls, %llu runs, %llu of them with an error\n", words.c_str(),
                  static_cast<unsigned long long>(progress.calls),
                  static_cast<unsigned long long>(progress.runs),
                  static_cast<unsigned long long>(progress.failed));
      progress.over = true;
      EXPECT_GT(progress.calls, 50u);
      EXPECT_GT(progress.failed, 20u) << "the refusals were felt";
    });
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace

TEST(EngineRefused, everything_is_out_of_memory_from_the_nth_call_on) {
  for_every_call("out of memory", [](Simulation& sim, uint64_t n) {
    sim.gpu().fail_from("*", n, CUDA_ERROR_OUT_OF_MEMORY);
  });
}
TEST(EngineRefused, everything_is_unknown_from_the_nth_call_on) {
  for_every_call("unknown", [](Simulation& sim, uint64_t n) {
    sim.gpu().fail_from("*", n, CUDA_ERROR_UNKNOWN);
  });
}
TEST(EngineRefused, an_illegal_address_at_the_nth_call) {
  for_every_call("700", [](Simulation& sim, uint64_t n) {
    sim.gpu().die(CUDA_ERROR_ILLEGAL_ADDRESS, n);
  });
}
TEST(EngineRefused, an_assertion_at_the_nth_call) {
  for_every_call("710", [](Simulation& sim, uint64_t n) { sim.gpu().die(CUDA_ERROR_ASSERT, n); });
}
TEST(EngineRefused, a_failed_launch_at_the_nth_call) {
  for_every_call("719", [](Simulation& sim, uint64_t n) {
    sim.gpu().die(CUDA_ERROR_LAUNCH_FAILED, n);
  });
}

TEST(EngineRefused, one_entry_for_good) {
  constexpr const char* entries[] = {
      "cuEventQuery", "cuEventRecord", "cuEventCreate", "cuStreamIsCapturing",
      "cuEventSynchronize", "cuStreamSynchronize", "cuStreamWaitEvent", "cuMemMap",
      "cuMemSetAccess", "cuMemUnmap", "cuMemCreate", "cuMemRelease", "cuMemcpyDtoHAsync",
      "cuMemcpyHtoDAsync", "cuCtxSynchronize", "cuCtxPushCurrent"};
  constexpr uint64_t from[] = {1, 4, 9};
  in_processes("one entry", [&](Progress& progress) {
    const char* const entry = entries[progress.n / 9];
    const Scenario& scenario = scenarios[progress.n / 3 % 3];
    const uint64_t n = from[progress.n % 3];
    SCOPED_TRACE(std::string(scenario.name) + ": " + entry + " from its call " +
                 std::to_string(n));
    Watched sim(options(scenario.policy));
    Job job(sim);
    sim->gpu().fail_from(entry, n, CUDA_ERROR_UNKNOWN);
    scenario.run(job);
    sim.watch("the end");
    progress.over = ++progress.n == std::size(entries) * 9;
  });
}
