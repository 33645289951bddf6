// Every nth call of the driver's is refused, once or from then on, in five jobs, at the opening and
// at the end of the engine: each call is answered, right or with a clean error, within a second; no
// byte is wrong; and once the driver is well again the engine serves, and nothing is left.
//
//   driver_faults_test                          each n up to 300, every third from there, all of
//                                               the end; each n with FIRN_TEST_LENGTH=long
//   driver_faults_test SCENARIO ANSWER WHEN N   one run: age oom once 17
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "tests/faults/scenarios.h"

namespace firn::faults {
namespace {

enum class Answer : uint8_t { oom, unknown, dies, not_ready, deinitialized };
constexpr const char* answer_names[] = {"oom", "unknown", "dies", "not_ready", "deinitialized"};
constexpr int answer_errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_NOT_READY,
                                 CUDA_ERROR_DEINITIALIZED};
enum class When : uint8_t { once, from };
constexpr const char* when_names[] = {"once", "from"};
// So long events are "not ready" although they are over; less than a second.
constexpr uint64_t not_ready_ns = 300'000'000;

struct Case {
  unsigned scenario;
  Answer answer;
  When when;
  uint64_t n;
  bool opening;
};

/// Calls of a scenario without failures.
struct Calls {
  uint64_t opening = 0, run = 0, end = 0, queries = 0;
};
std::vector<Calls> calls_of;

// In front of cuEventQuery: what is over is not ready, the nth time.
struct Queries {
  decltype(Driver::event_query) real = nullptr;
  uint64_t asked = 0, from = 0, until_ns = 0;
  bool lasting = false;
  sim::Machine* machine = nullptr;
} queries;

CUresult event_query(CUevent event) {
  ++queries.asked;
  if (queries.from && queries.asked >= queries.from) {
    const uint64_t now = queries.machine->gpu().now();
    if (queries.asked == queries.from) queries.until_ns = now + not_ready_ns;
    if (queries.asked == queries.from || (queries.lasting && now < queries.until_ns))
      return CUDA_ERROR_NOT_READY;
  }
  return queries.real(event);
}

void arm(const sim::Controls& gpu, const Case& of, uint64_t n) {
  const int error = answer_errors[static_cast<int>(of.answer)];
  if (of.answer == Answer::dies)
    (void)gpu.die(error, n);
  else if (of.when == When::from)
    gpu.fail_from("*", n, error);
  else
    gpu.fail_at("*", n, error);
}

End run(const Case& of) {
  const Scenario& scenario = scenarios()[of.scenario];
  const Held before = Held::now();
  static const size_t threads = before.threads;
  bool any_dead = false, met = true;
  unsigned errors = 0;
  {
    sim::Options options = scenario.machine();
    if (of.opening && of.n)
      options.before_open = [&](const sim::Controls& gpu) { arm(gpu, of, of.n); };
    Job job(options);
    const sim::Controls& gpu = job.machine().gpu();
    const auto well = [&] {
      gpu.fail_at("*", 0, 0);
      queries.from = 0;
    };
    if (of.opening) {
      well();
      if (!job.opened()) {
        const std::string& words = job.open_error();
        if (words.find("CUDA_") == std::string::npos) wrong("opening answers: " + words);
        for (int device = 0; device < options.devices; ++device)
          if (job.machine().open(device)) job.machine().close(device);
        if (gpu.reserved_bytes() != 0 && of.answer == Answer::oom && of.when == When::once)
          wrong(fmt::format("an opening that failed leaves {} bytes of addresses reserved",
                            gpu.reserved_bytes()));
        return End::error;
      }
      if (of.answer == Answer::dies) return End::right;
      job.recover();
      job.end(of.when == When::once);
      return End::right;
    }
    queries = {job.machine().driver().event_query};
    queries.machine = &job.machine();
    job.machine().driver().event_query = event_query;
    const uint64_t begin = gpu.fallible_calls();
    const Calls& usual = calls_of[of.scenario];
    const bool in_the_end = of.answer != Answer::not_ready && of.n > usual.run;
    if (of.answer == Answer::not_ready) {
      queries.from = of.n;
      queries.lasting = of.when == When::from;
    } else if (of.n && !in_the_end) {
      arm(gpu, of, of.n);
    }
    scenario.run(job);
    if (of.n == 0) {  // counts
      calls_of[of.scenario].run = gpu.fallible_calls() - begin;
      calls_of[of.scenario].queries = queries.asked;
      if (job.errors) wrong("without a failure: " + job.first_error);
      if (const std::string missing = scenario.missing(job); !missing.empty())
        wrong("without a failure the job has not met: " + missing);
      const uint64_t end = gpu.fallible_calls();
      job.end(true);
      calls_of[of.scenario].end = gpu.fallible_calls() - end;
      return End::right;
    }
    errors = job.errors;
    for (int device = 0; device < options.devices; ++device) any_dead |= job.dead(device);
    const bool stays = of.answer == Answer::dies;
    if (any_dead && of.when == When::once && !stays)
      wrong("one refusal of one call ends the device");
    if (in_the_end) {
      arm(gpu, of, of.n - usual.run);
      job.end(false);
    } else if (any_dead || stays) {
      job.end(false);
    } else if (of.when == When::from && of.n % 3 == 0) {  // the end comes while it is ill
      job.end(false);
    } else {
      well();
      job.recover();
      job.end(of.when == When::once || std::strcmp(scenario.name, "exports") != 0);
    }
    met = of.answer == Answer::not_ready ? queries.asked >= of.n
                                         : gpu.fallible_calls() - begin >= of.n;
    well();
  }
  // What is imported, and whose end is refused for good, stays to the end of the process.
  const bool leaves = of.when == When::from && std::strcmp(scenario.name, "exports") == 0;
  const Held after = Held::now();
  // (One thread is the process's own, of whatever number of engines: slow_work.h.)
  if (!leaves && (after.descriptors != before.descriptors || after.threads > threads + 1))
    wrong(fmt::format("{} descriptors and {} threads before, {} and {} after", before.descriptors,
                      threads, after.descriptors, after.threads));
  if (!met) return End::none;
  return errors ? End::error : End::right;
}

std::string words_of(const Case& of) {
  return fmt::format("{} {} {} {}{}", scenarios()[of.scenario].name,
                     answer_names[static_cast<int>(of.answer)],
                     when_names[static_cast<int>(of.when)], of.n, of.opening ? " opening" : "");
}

/// Without failures, in processes of their own: how many calls there are.
bool count_calls(const std::string& program) {
  auto* counts = static_cast<Calls*>(shared_memory(scenarios().size() * sizeof(Calls)));
  bool passed = true;
  CaseRuns runs;
  runs.program = program;
  runs.words = [](size_t i) { return std::string(scenarios()[i].name) + " oom once 0"; };
  runs.run = [&](size_t i) {
    const auto scenario = static_cast<unsigned>(i);
    (void)run({scenario, Answer::oom, When::once, 0, false});
    uint64_t opening = 0;
    sim::Options options = scenarios()[i].machine();
    options.before_open = [&](const sim::Controls& gpu) { opening = gpu.fallible_calls(); };
    {
      Job job(options);
      calls_of[i].opening = job.machine().gpu().fallible_calls() - opening;
    }
    counts[i] = calls_of[i];
    return End::right;
  };
  (void)run_cases(runs, scenarios().size(), passed);
  calls_of.assign(counts, counts + scenarios().size());
  return passed;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (unsigned i = 0; i < scenarios().size(); ++i)
    for (const Answer answer : {Answer::oom, Answer::unknown, Answer::dies, Answer::not_ready,
                                Answer::deinitialized})
      for (const When when : {When::once, When::from}) {
        if (answer == Answer::dies && when == When::once) continue;  // it stays
        const Calls& calls = calls_of[i];
        const uint64_t most = answer == Answer::not_ready ? calls.queries : calls.run + calls.end;
        for (uint64_t n = 1; n <= most; ++n)
          if (tried(n, 300) || (n > calls.run && length() == Length::normal))
            cases.push_back({i, answer, when, n, false});
        if (answer == Answer::not_ready) continue;
        for (uint64_t n = 1; n <= calls.opening; ++n)
          if (tried(n, 300)) cases.push_back({i, answer, when, n, true});
      }
  return cases;
}

void print_table(const std::vector<Case>& cases, const std::vector<End>& ends) {
  std::printf("%-10s %-14s %-5s %6s %6s %8s %8s %8s\n", "scenario", "answer", "when", "calls",
              "runs", "right", "error", "not met");
  for (size_t i = 0; i < cases.size();) {
    const Case& first = cases[i];
    size_t runs = 0, right = 0, errors = 0, none = 0;
    for (; i < cases.size() && cases[i].scenario == first.scenario &&
           cases[i].answer == first.answer && cases[i].when == first.when;
         ++i) {
      ++runs;
      right += ends[i] == End::right;
      errors += ends[i] == End::error;
      none += ends[i] == End::none;
    }
    const Calls& calls = calls_of[first.scenario];
    const uint64_t most = first.answer == Answer::not_ready
                              ? calls.queries
                              : calls.opening + calls.run + calls.end;
    std::printf("%-10s %-14s %-5s %6llu %6zu %8zu %8zu %8zu\n", scenarios()[first.scenario].name,
                answer_names[static_cast<int>(first.answer)],
                when_names[static_cast<int>(first.when)], static_cast<unsigned long long>(most),
                runs, right, errors, none);
  }
}

int run_all(const std::string& program) {
  if (!count_calls(program)) return 1;
  const std::vector<Case> cases = all_cases();
  bool passed = true;
  CaseRuns runs;
  runs.program = program;
  runs.words = [&](size_t i) { return words_of(cases[i]); };
  runs.run = [&](size_t i) { return run(cases[i]); };
  const std::vector<End> ends = run_cases(runs, cases.size(), passed);
  print_table(cases, ends);
  std::printf("%zu runs\n", cases.size());
  return passed ? 0 : 1;
}

int run_one(char** words) {
  Case of{};
  const auto index = [](const char* word, auto&& names) {
    unsigned i = 0;
    for (const char* name : names) {
      if (std::strcmp(word, name) == 0) return i;
      ++i;
    }
    std::fprintf(stderr, "%s is not known\n", word);
    std::exit(2);
  };
  std::vector<const char*> names;
  for (const Scenario& scenario : scenarios()) names.push_back(scenario.name);
  of.scenario = index(words[0], names);
  of.answer = static_cast<Answer>(index(words[1], answer_names));
  of.when = static_cast<When>(index(words[2], when_names));
  of.n = std::strtoull(words[3], nullptr, 10);
  of.opening = words[4] != nullptr;
  if (of.n) (void)run({of.scenario, Answer::oom, When::once, 0, false});
  const End end = run(of);
  std::printf("%s: %s\n", words_of(of).c_str(),
              end == End::right ? "right" : end == End::error ? "an error" : "not met");
  return 0;
}

}  // namespace
}  // namespace firn::faults

int main(int argc, char** argv) {
  using namespace firn::faults;
  calls_of.resize(scenarios().size());
  return argc > 4 ? run_one(argv + 1) : run_all(argv[0]);
}
