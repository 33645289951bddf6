// A store in a program that closes descriptors which it did not open, and then opens files of its
// own that get the same numbers; on kernels that lack something, or that are slow.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/backing/store/children.h"
#include "tests/backing/store/store_testing.h"

namespace firn::testing_store {

using Help = FileCalls::RingHelp;
inline constexpr size_t piece_bytes = 1u << 20;
inline constexpr uint64_t pieces = 16;

/// A kernel that does not know some things, and one that is slow: an I/O thread that has decided on
/// a call stands still before it.
class OlderKernel : public FaultyCalls {
 public:
  bool helps(Help what) override { return !unknown.contains(what); }
  ssize_t begin(const FileCall& call) override {
    if (call.write) stand();
    return FaultyCalls::begin(call);
  }
  int fallocate(int fd, uint64_t offset, uint64_t bytes) override {
    stand();
    return full ? -ENOSPC : FaultyCalls::fallocate(fd, offset, bytes);
  }
  void stand() {
    if (!slow) return;
    stands = true;
    stands.notify_all();
    slow.wait(true);
  }
  void wait_until_it_stands() const { stands.wait(false); }
  void go_on() {
    slow = false;
    slow.notify_all();
  }
  std::set<Help> unknown;
  std::atomic<bool> slow{false}, stands{false};
  std::atomic<bool> full{false};  // the disk: the length is set to what it was
};

/// Stderr from here on, as a file; what did not hold is told at the end.
class Words {
 public:
  Words() { (void)::dup2(::fileno(std::tmpfile()), STDERR_FILENO); }
  ~Words() {
    if (all().find("not so:") == std::string::npos) return;
    std::printf("%s", all().c_str());
    std::fflush(stdout);
  }
  std::string all() {
    std::string text(1u << 16, '\0');
    const ssize_t got = ::pread(STDERR_FILENO, text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
    return text;
  }
};

inline size_t count_of(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++count;
  return count;
}

/// The program's own files, by every number that it closed before.
class OwnFiles {
 public:
  explicit OwnFiles(const std::string& dir) : name_(dir + "/mine-") {}
  /// os.closerange(3, `end`), then files with 12 bytes each.
  bool take_numbers(int end) {
    for (int fd = 3; fd < end; ++fd) ::close(fd);
    while (true) {
      const std::string name = name_ + std::to_string(files_.size());
      const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
      if (fd < 0 || ::write(fd, "twelve bytes", 12) != 12) return false;
      files_.push_back(name);
      if (fd >= end - 1) return true;
    }
  }
  bool untouched() const {
    for (const std::string& name : files_) {
      std::ifstream in(name, std::ios::binary);
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      if (text != "twelve bytes") {
        std::fprintf(stdout, "%s: %zu bytes\n", name.c_str(), text.size());
        return false;
      }
    }
    return !files_.empty();
  }

 private:
  std::string name_;
  std::vector<std::string> files_;
};

inline constexpr int numbers = 640;  // the store's own are among them

struct Case {
  StoreOptions::Kind kind;
  bool own_table = true;  // for I/O threads: close_range is there
};
inline std::string case_name(const testing::TestParamInfo<Case>& info) {
  return kind_name(info.param.kind) + (info.param.own_table ? "" : "_one_table");
}

class StoreDescriptors : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (ring() && !io_uring_trouble().empty()) GTEST_SKIP() << io_uring_trouble();
    if (!own_table()) calls_.unknown = {Help::own_table};
  }
  bool ring() const { return GetParam().kind == StoreOptions::Kind::io_uring; }
  bool own_table() const { return GetParam().own_table; }
  /// Bytes that were spilled stay within reach.
  bool lasts() const { return own_table() || ring(); }
  bool open(size_t dirs = 1) {
    StoreOptions options = small_options(dirs_[0].path(), GetParam().kind);
    for (size_t i = 1; i < dirs; ++i) options.dirs.push_back(dirs_[i].path());
    Result<std::unique_ptr<Store>> opened = open_file_store(options, calls_);
    Result<StagingMemory> staging = StagingMemory::create(2 * pieces * piece_bytes);
    if (!opened || !staging) return false;
    it_.store = std::move(*opened);
    it_.staging = std::make_unique<StagingMemory>(std::move(*staging));
    return true;
  }
  static bool told(const Error& error) {
    std::fprintf(stderr, "%s\n", describe(error).c_str());
    return false;
  }
  bool attach() { return bool(store().attach_staging(it_.staging->bytes())); }
  Store& store() { return *it_.store; }
  std::span<std::byte> piece(uint64_t i) { return it_.piece(i * piece_bytes, piece_bytes); }
  bool fill_slots() {
    for (uint64_t i = 0; i < pieces; ++i) {
      Result<Slot> slot = store().reserve(piece_bytes);
      if (!slot) return told(slot.error());
      slots_.push_back(*slot);
      fill(piece(i), i);
      const Error written = write_now(store(), wall_clock(), *slot, piece(i)).error;
      if (written.code != Code::ok) return told(written);
    }
    return true;
  }
  /// Even slots are written anew, odd ones read back, all at once.
  bool begin_all() {
    for (uint64_t i = 0; i < pieces; ++i) {
      if (i % 2 == 0) fill(piece(i), 100 + i);
      const bool begun = i % 2 == 0 ? bool(store().write(0, slots_[i], piece(i), i))
                                    : bool(store().read(0, slots_[i], piece(pieces + i), i));
      if (!begun) return false;
    }
    return true;
  }
  Error read(uint64_t i) {
    return read_now(store(), wall_clock(), slots_[i], piece(pieces)).error;
  }

  TempDir dirs_[2], program_;
  OlderKernel calls_;  // outlives the store
  OpenStore it_;
  std::vector<Slot> slots_;
};

}  // namespace firn::testing_store
