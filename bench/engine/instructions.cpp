// The instructions that the engine's hot paths execute, counted one by one (ptrace), so that two
// builds can be compared on a noisy machine and without counters of the processor's. The child runs
// each call on the software GPU's virtual clock, between two traps; the parent steps through it.
//
//   FIRN_TEST_GPU=build/backing/gpu/software/libcuda.so.1 build/bench/engine/instructions
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/engine/bench_machine.h"

namespace {

using namespace firn;
using bench::must;

struct Case {
  const char* name;
  std::function<void()> call;
};

inline void trap() { asm volatile("int3" ::: "memory"); }

constexpr int times = 9;  // each; the median is printed

void run(std::vector<Case>& cases) {
  for (Case& one : cases)
    for (int i = 0; i < times; ++i) {
      one.call();  // (warm)
      trap();
      one.call();
      trap();
    }
}

/// In the child.
void measured() {
  const std::unique_ptr<simulate::Machine> machine = bench::machine(true);
  Engine& engine = machine->engine();
  const auto make = [&](size_t bytes) {
    void* block = must(engine.allocate(bytes, nullptr));
    Hold hold = must(engine.touch(block, nullptr, Access::write));
    engine.release(hold, nullptr);
    return block;
  };
  void* const large = make(4u << 20);
  void* const small = make(4u << 10);
  std::vector<uint64_t> launch;
  for (int i = 0; i < 8; ++i) launch.push_back(reinterpret_cast<uint64_t>(make(2u << 20)));
  std::vector<Hold> holds(launch.size());
  const auto pair = [&](size_t bytes) {
    if (!engine.free(must(engine.allocate(bytes, nullptr)))) std::exit(1);
  };
  const auto touch = [&](void* block, Access access) {
    engine.release(must(engine.touch(block, nullptr, access)), nullptr);
  };
  std::vector<Case> cases{
      {"nothing", [] {}},
      {"allocate and free, 512 B", [&] { pair(512); }},
      {"allocate and free, 64 KiB", [&] { pair(64u << 10); }},
      {"allocate and free, 4 MiB", [&] { pair(4u << 20); }},
      {"touch and release, 4 MiB, read", [&] { touch(large, Access::read); }},
      {"touch and release, 4 MiB, write", [&] { touch(large, Access::write); }},
      {"touch and release, 4 KiB, read", [&] { touch(small, Access::read); }},
      {"touch and release, 8 of 2 MiB at once",
       [&] {
         size_t held = 0;
         (void)engine.touch_many(launch, Access::write, holds.data(), held);
         engine.release_many({holds.data(), held}, nullptr);
       }},
  };
  // The parent learns the names here, and prints when it has counted.
  for (const Case& one : cases) std::printf("%s\n", one.name);
  std::fflush(stdout);
  run(cases);
  std::_Exit(0);
}

/// Did the child stop at a trap of its own, and not after one step?
bool at_trap(pid_t child) {
  siginfo_t info{};
  if (::ptrace(PTRACE_GETSIGINFO, child, nullptr, &info) != 0) std::exit(1);
  return info.si_code != TRAP_TRACE;
}

/// Until the child stops; false: it has ended.
bool stopped(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) std::exit(1);
  if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP) return true;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return false;
  std::fprintf(stderr, "instructions: the measured process died\n");
  std::exit(1);
}

}  // namespace

int main() {
  int names[2];
  if (::pipe(names) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(names[1], STDOUT_FILENO);
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    measured();
  }
  ::close(names[1]);
  std::vector<uint64_t> counts;
  while (stopped(child)) {
    if (!at_trap(child)) return 1;
    uint64_t count = 0;
    for (;; ++count) {
      if (::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0 || !stopped(child)) return 1;
      if (at_trap(child)) break;
    }
    counts.push_back(count);
    if (::ptrace(PTRACE_CONT, child, nullptr, nullptr) != 0) return 1;
  }
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(names[0], buffer, sizeof buffer)) > 0;) text.append(buffer, got);
  uint64_t nothing = 0;
  const size_t rows = counts.size() / times;
  for (size_t begin = 0, row = 0; begin < text.size() && row < rows; ++row) {
    const size_t end = text.find('\n', begin);
    const auto first = counts.begin() + static_cast<ptrdiff_t>(row * times);
    std::nth_element(first, first + times / 2, first + times);
    const uint64_t median = first[times / 2];
    if (row == 0)
      nothing = median;  // of the call and the traps
    else
      std::printf("%-40s %6llu\n", text.substr(begin, end - begin).c_str(),
                  static_cast<unsigned long long>(median - nothing));
    begin = end + 1;
  }
  return 0;
}
