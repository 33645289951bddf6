#include "tests/faults/cases.h"

#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace firn::faults {

namespace {

/// In memory that all workers have.
struct Words {
  std::atomic<size_t> now;
  char text[2048];
};
Words* mine = nullptr;

template <class T>
T* shared(size_t count) {
  return static_cast<T*>(shared_memory(count * sizeof(T)));
}

void too_long(int) { wrong("it does not end"); }

size_t entries(const char* folder) {
  DIR* open = ::opendir(folder);
  if (!open) return 0;
  size_t count = 0;
  while (::readdir(open)) ++count;
  ::closedir(open);
  return count;
}

std::string tail(std::FILE* file) {
  char words[3000];
  const off_t size = ::lseek(::fileno(file), 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(sizeof words));
  const ssize_t got = ::pread(::fileno(file), words, sizeof words, from);
  return got > 0 ? std::string(words, static_cast<size_t>(got)) : std::string();
}

constexpr int more_to_do = 77;

[[noreturn]] void work(const CaseRuns& runs, size_t cases, std::atomic<size_t>& next, End* ends,
                       Words* words, std::FILE* said) {
  mine = words;
  (void)::dup2(::fileno(said), STDERR_FILENO);
  (void)::signal(SIGALRM, too_long);
  // The next run has the memory that this one gives back without a page fault: most of its time.
  (void)::mallopt(M_MMAP_THRESHOLD, 6 << 20);
  (void)::mallopt(M_TRIM_THRESHOLD, 512 << 20);
  for (unsigned done = 0; done < runs.cases_of_a_worker; ++done) {
    const size_t number = next.fetch_add(1);
    if (number >= cases) ::_exit(0);
    words->now = number;
    (void)!::ftruncate(STDERR_FILENO, 0);
    (void)::lseek(STDERR_FILENO, 0, SEEK_SET);
    ::alarm(runs.seconds_most);
    ends[number] = runs.run(number);
    ::alarm(0);
  }
  ::_exit(more_to_do);
}

}  // namespace

void* shared_memory(size_t bytes) {
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) std::abort();
  return at;
}

void wrong(const std::string& text) {
  if (mine)
    std::snprintf(mine->text, sizeof mine->text, "%s", text.c_str());
  else
    std::fprintf(stderr, "%s\n", text.c_str());
  ::_exit(1);
}

std::vector<End> run_cases(const CaseRuns& runs, size_t cases, bool& passed) {
  auto* next = new (shared<std::atomic<size_t>>(1)) std::atomic<size_t>(0);
  End* ends = shared<End>(cases);
  Words* words = shared<Words>(runs.jobs);
  std::vector<std::FILE*> said(runs.jobs);
  std::map<pid_t, unsigned> workers;
  const auto start = [&](unsigned i) {
    std::fflush(stdout);
    words[i].now = SIZE_MAX;
    words[i].text[0] = 0;
    const pid_t child = ::fork();
    if (child == 0) work(runs, cases, *next, ends, &words[i], said[i]);
    if (child < 0) std::abort();
    workers[child] = i;
  };
  for (unsigned i = 0; i < runs.jobs; ++i) {
    said[i] = std::tmpfile();
    start(i);
  }
  unsigned failures = 0;
  while (!workers.empty()) {
    int status = 0;
    const pid_t child = ::wait(&status);
    if (child < 0) continue;
    const unsigned i = workers.at(child);
    workers.erase(child);
    if (status == 0) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == more_to_do) {
      start(i);
      continue;
    }
    passed = false;
    const size_t number = words[i].now;
    const std::string end = WIFSIGNALED(status)
                                ? "signal " + std::to_string(WTERMSIG(status))
                                : "status " + std::to_string(WEXITSTATUS(status));
    std::printf("WRONG: %s\n%s\nends with %s; replay: %s %s\n",
                words[i].text[0] ? words[i].text : "(its process ended)", tail(said[i]).c_str(),
                end.c_str(), runs.program.c_str(),
                number < cases ? runs.words(number).c_str() : "(before its first run)");
    const char* most = std::getenv("FIRN_FAILURES");
    if (++failures < (most ? std::strtoul(most, nullptr, 10) : 3)) start(i);
    else *next = cases;
  }
  for (std::FILE* file : said) std::fclose(file);
  return std::vector<End>(ends, ends + cases);
}

Length length() {
  const char* words = std::getenv("FIRN_TEST_LENGTH");
  if (words && std::strcmp(words, "long") == 0) return Length::long_;
  if (words && std::strcmp(words, "quick") == 0) return Length::quick;
  return Length::normal;
}

bool tried(uint64_t n, uint64_t each) {
  switch (length()) {
    case Length::long_: return true;
    case Length::quick: return n <= 3 || n % 61 == 0;
    case Length::normal: return n <= each || n % 3 == 0;
  }
  return true;
}

Held Held::now() { return {entries("/proc/self/fd"), entries("/proc/self/task")}; }

}  // namespace firn::faults
