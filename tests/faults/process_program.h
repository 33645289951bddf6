// The program of process_test.cpp: a job over the C API that spills and reads back, on the software
// GPU as a program would have it.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "firn/firn.h"
#include "tests/faults/cases.h"
#include "tests/faults/interpose.h"
#include "tests/faults/process_report.h"
#include "tests/real_faults/gpu.h"

namespace firn::faults {

struct Block {
  void* address = nullptr;
  uint64_t seed = 0;  // 0: not written
  bool lost = false;
};

/// A job over the C API. Statuses other than FIRN_OK are errors, each with words.
class Program {
 public:
  Program(const std::string& conf, bool allocations, bool patient)
      : conf_(conf), allocations_(allocations), patient_(patient) {}

  bool open() { return does("firn_init", [&] { return firn_init(conf_.c_str()); }); }

  void job() {
    if (!open()) return;
    for (int i = 0; i < 9; ++i) {
      if (make()) (void)write(blocks_.back(), 1 + static_cast<uint64_t>(i));
      if (i == 4 && !blocks_.empty()) cold(blocks_[0]);
    }
    for (Block& block : blocks_) read(block);
    if (blocks_.size() > 3) {
      Block& block = blocks_[2];
      (void)does("firn_prefetch", [&] { return firn_prefetch(block.address, bytes, nullptr); });
      if (does("firn_pin", [&] { return firn_pin(block.address); }))
        (void)does("firn_unpin", [&] { return firn_unpin(block.address); });
      (void)write(blocks_[1], 77);
      drop(0);
    }
    stats();
    view();
    for (Block& block : blocks_) read(block);
  }

  /// A viewer asks (for words that take none of the JSON library's memory where that fails).
  void view() {
    const Uncounted quiet;  // its calls are not Firn's (see does())
    const std::string path = fmt::format("{}/firn/{}.sock", std::getenv("XDG_RUNTIME_DIR"),
                                         ::getpid());
    const std::string word = allocations_ ? "nothing\n" : "stats\n";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{patient_ ? 10 : 0, patient_ ? 0 : 300'000};
    for (const int each : {SO_RCVTIMEO, SO_SNDTIMEO})
      (void)::setsockopt(fd, SOL_SOCKET, each, &patience, sizeof patience);
    char text[4096];
    size_t got = 0;
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        ::send(fd, word.data(), word.size(), MSG_NOSIGNAL) > 0)
      for (ssize_t more; (more = ::recv(fd, text, sizeof text, 0)) > 0;)
        got += static_cast<size_t>(more);
    ::close(fd);
    viewed_ = got > 0;
  }
  bool viewed() const { return viewed_; }

  /// Calls no longer fail.
  void recover() {
    const unsigned before = report->errors;
    // (A directory that could not be written rests, for a second or more.)
    const auto must = [&](const char* what, auto&& call) {
      for (int i = 0; i < 150; ++i) {
        if (call() || last_lost_ || ended()) return;
        ::usleep(100'000);
      }
      wrong(fmt::format("calls no longer fail, and {} does: {} ({} errors before; the first call "
                        "that failed: {})",
                        what, last_, before, first_failed()));
    };
    must("firn_init", [&] { return opened_ || open(); });
    must("an allocation", [&] { return make(); });
    if (!blocks_.empty()) must("a write", [&] { return write(blocks_.back(), 99); });
    for (Block& block : blocks_) must("a read", [&] { return read(block); });
    stats();
    while (!blocks_.empty()) drop(blocks_.size() - 1);
    report->errors = before;
  }

  void end() {
    timed("firn_shutdown", [] { firn_shutdown(); return FIRN_OK; });
    check();
  }

  /// A read that failed while nobody waited for it, or before the engine ended, was told to no
  /// touch.
  bool has_lost() {
    static char text[1 << 16];
    const Uncounted quiet;
    (void)firn_stats(text, sizeof text);
    const char* const count = std::strstr(text, "\"lost_blocks\":");
    return count && std::atoi(count + std::strlen("\"lost_blocks\":")) > 0;
  }

  static real_faults::Gpu& gpu() {
    static real_faults::Gpu* made = [] {
      auto* gpu = new real_faults::Gpu(std::getenv("FIRN_TEST_GPU"));
      if (!gpu->well()) wrong("the software GPU");
      return gpu;
    }();
    return *made;
  }

 private:
  static constexpr size_t bytes = 4u << 20;

  static double cpu_s() {
    timespec used{};
    (void)::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  }

  template <class Call>
  int timed(const char* what, Call&& call) {
    using Time = std::chrono::steady_clock;
    const auto begin = Time::now();
    const double cpu_begin = cpu_s();
    const int status = call();
    const double seconds = std::chrono::duration<double>(Time::now() - begin).count();
    report->slowest_cpu_s = std::max(report->slowest_cpu_s, cpu_s() - cpu_begin);
    if (seconds > report->slowest_s) {
      report->slowest_s = seconds;
      std::snprintf(report->slowest, sizeof report->slowest, "%s", what);
    }
    return status;
  }
  template <class Call>
  bool does(const char* what, Call&& call) {
    const int status = timed(what, call);
    if (status == FIRN_OK) {
      if (std::strcmp(what, "firn_init") == 0) opened_ = true;
      return true;
    }
    // (Under a sanitizer a string's code may be the library's copy, and counts as a call of
    // Firn's.)
    const Uncounted quiet;
    last_ = fmt::format("{}: status {}: {}", what, status, firn_error());
    last_lost_ = status == FIRN_LOST;
    report->lost |= last_lost_;
    if (report->errors++ == 0)
      std::snprintf(report->first, sizeof report->first, "%s", last_.c_str());
    if (status < 0 || status > FIRN_NOT_SUPPORTED + 8) wrong(last_);
    return false;
  }
  /// The engine has ended for want of memory in the middle of something: so it stays.
  bool ended() const { return last_.find("in the middle of moving blocks") != std::string::npos; }
  void check() {
    if (const uint64_t count = real_faults::wrong_words)
      wrong(fmt::format("{} words are wrong; the first call that failed: {}", count,
                        first_failed()));
  }
  bool make() {
    Block block;
    if (!does("firn_malloc", [&] { return firn_malloc(&block.address, bytes, 0, nullptr); }))
      return false;
    blocks_.push_back(block);
    return true;
  }
  bool touch(Block& block, int access) {
    const bool done = does("firn_touch", [&] {
      return firn_touch(&block.address, &access, 1, nullptr);
    });
    block.lost |= !done && last_lost_;
    return done;
  }
  bool write(Block& block, uint64_t seed) {
    if (block.lost || !touch(block, FIRN_WRITE)) return false;
    if (gpu().fill(block.address, bytes, seed) != CUDA_SUCCESS) wrong("a launch");
    firn_launched();
    block.seed = seed;
    return true;
  }
  bool read(Block& block) {
    if (block.lost) return true;
    if (!touch(block, FIRN_READ)) return block.lost;
    if (block.seed && gpu().compare(block.address, bytes, block.seed) != CUDA_SUCCESS)
      wrong("a launch");
    firn_launched();
    if (gpu().synchronize() != CUDA_SUCCESS) wrong("cuCtxSynchronize");
    check();
    return true;
  }
  void cold(Block& block) {
    (void)does("firn_cold", [&] { return firn_cold(block.address, bytes); });
  }
  void drop(size_t index) {
    (void)does("firn_free", [&] { return firn_free(blocks_[index].address, nullptr); });
    blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(index));
  }
  // (The JSON library's destructors take memory: without any they end the process.)
  void stats() {
    static char text[1 << 16];
    std::optional<Uncounted> quiet;
    if (allocations_) quiet.emplace();
    (void)timed("firn_stats", [&] { (void)firn_stats(text, sizeof text); return FIRN_OK; });
  }
  const std::string conf_;
  const bool allocations_;  // fail
  const bool patient_;      // with who answers a viewer
  bool opened_ = false, viewed_ = false;
  std::vector<Block> blocks_;
  std::string last_;
  bool last_lost_ = false;
};

}  // namespace firn::faults
