// Many runs of one test, each with another failure, in worker processes: a run that aborts, hangs
// or kills its process is a result like any other, and its case is named with the command that
// repeats it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace firn::faults {

/// How a run ended that was not wrong: nothing failed that the program could see; a call was
/// answered with an error; or the failure never came to pass.
enum class End : uint8_t { not_run, right, error, none };

struct CaseRuns {
  std::function<std::string(size_t)> words;  // of a case: the arguments that repeat it
  /// The run. Whatever is wrong goes to wrong() and ends the process.
  std::function<End(size_t)> run;
  std::string program;
  unsigned jobs = 2;
  unsigned cases_of_a_worker = 200;  // then another process goes on
  unsigned seconds_most = 30;        // of one run, by the clock
};

/// The last words of a worker.
[[noreturn]] void wrong(const std::string& text);

/// Runs `cases` of them. How each ended, by its number; false in `passed` when any was wrong.
std::vector<End> run_cases(const CaseRuns& runs, size_t cases, bool& passed);

enum class Length { quick, normal, long_ };
Length length();

/// Whether the nth call is tried, of so many that a test of this length tries: each of the first
/// `each`, and every third from there; with `--long` each.
bool tried(uint64_t n, uint64_t each);

/// That forked children have, too; zeroes.
void* shared_memory(size_t bytes);

/// Descriptors and threads of this process.
struct Held {
  size_t descriptors = 0, threads = 0;
  static Held now();
};

}  // namespace firn::faults
