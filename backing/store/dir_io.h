// The I/O of one spill file: jobs wait here, and one ring thread, or a few pread/pwrite threads,
// take transfers out of them. Reads go first, but leave writes a quarter of the depth.
//
// Never writes to a descriptor that may be the program's by now: each thread has a table of
// descriptors of its own (ThreadFile), and a word in memory wakes the ring's. Without such a table,
// pread and pwrite check the descriptor before each transfer, which leaves an instant between, and
// the ring knows its files by itself.
//
// Owns: the jobs from submit() to finished(), the threads, the ring. Threads start with the first
// job or piece of staging, and sleep when there is nothing to do.
// Lock: mutex_, never held during a system call that moves bytes nor while a sum is taken, and
// never while calling the host.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backing/store/job.h"
#include "firn/ranked_mutex.h"

namespace firn {

/// Receives finished jobs. Called by I/O threads with no lock held.
class JobHost {
 public:
  virtual void finished(std::unique_ptr<Job> job) = 0;

 protected:
  ~JobHost() = default;
};

struct IoLimits {
  size_t request_bytes = 1 << 20;
  unsigned depth = 32;   // transfers in flight, at most
  unsigned threads = 4;  // where there is no ring
};

class DirIo {
 public:
  DirIo(SpillFile& file, FileCalls& calls, JobHost& host, IoLimits limits, bool ring,
        unsigned number);
  ~DirIo();  // stops
  /// Drops what has not begun, waits for the rest; nothing is submitted after it.
  void stop();
  DirIo(const DirIo&) = delete;
  DirIo& operator=(const DirIo&) = delete;

  Result<void> submit(std::unique_ptr<Job> job);
  /// A job of that queue and tag that has not begun, taken out; null when there is none.
  std::unique_ptr<Job> withdraw(unsigned queue, uint64_t tag);
  /// Makes `staging` known to the ring; returns when that is done, or was refused (see why()).
  Result<void> attach(std::span<std::byte> staging);
  /// The ring forgets `staging`, in which nothing is in flight; returns when that is done.
  void detach(std::span<std::byte> staging);

  /// At most so many transfers in flight from now on (1 .. IoLimits::depth).
  void share_depth(unsigned depth);

  bool ring() const;        // false also when the ring thread fell back
  bool has_file() const;    // by itself: I/O goes on if the program closes the descriptors
  std::string why() const;  // why not better

 private:
  friend class RingLoop;
  enum Side : size_t { reads, writes };

  Result<void> start();
  void change_staging(std::unique_lock<RankedMutex<Rank::dir_io>>& lock,
                      std::span<std::byte> staging, bool attached);
  void wake();  // mutex_ not held
  bool idle() const { return waiting_[reads].empty() && waiting_[writes].empty(); }
  /// The next transfer, or none: nothing waits, or `depth` are in flight. mutex_ held.
  std::optional<Transfer> take();
  /// A transfer is over; the job comes back when that was its last one. mutex_ not held.
  Job* put_back(Transfer& transfer);
  /// A job's last transfer is over: ends it, or has it read again.
  void conclude_job(Job* job, ThreadFile& at);

  void settle(ThreadFile& at);  // in a table of the calling thread's own, if that can be
  void run(ThreadFile at);  // a pread/pwrite thread
  /// at.reach(); notes that a thread now reaches the file by itself.
  Error reach(ThreadFile& at, bool buffered);
  /// A transfer that failed because the program has closed the file since reach() looked, and may
  /// have its number, is lost, by name.
  void name_closed(Transfer& transfer, ThreadFile& at);
  void work(ThreadFile& at);
  void move(Transfer& transfer, ThreadFile& at);  // by pread or pwrite, to its end
  /// From ring to threads, by the ring's thread.
  void fall_back(const std::string& words, ThreadFile& at);
  void add_why(const std::string& words);  // mutex_ held

  SpillFile& file_;
  FileCalls& calls_;
  JobHost& host_;
  const IoLimits limits_;
  const unsigned number_;  // of the directory, for the threads' names

  mutable RankedMutex<Rank::dir_io> mutex_;
  RankedCondition work_;             // jobs, staging, or the end
  RankedCondition attached_;         // a change of staging was dealt with
  std::array<std::deque<Job*>, 2> waiting_;  // with transfers not taken; owned until finished
  std::array<unsigned, 2> in_flight_{};      // transfers, by side
  unsigned depth_;                           // of them, just now
  struct StagingChange {
    std::span<std::byte> staging;
    bool attached;  // else detached
  };
  std::deque<StagingChange> staging_changes_;     // that the ring's thread has not dealt with
  uint64_t changes_asked_ = 0, changes_seen_ = 0;  // in all; by the ring's thread
  bool ring_;
  std::atomic<bool> has_file_{false};
  bool stopping_ = false;
  std::string why_;
  // The ring's thread sleeps in io_uring_enter, or is about to: set under mutex_ when it finds no
  // work. To wake it, the word below is counted up and woken; a request of the ring waits for that.
  std::atomic<bool> ring_asleep_{false};
  std::atomic<uint32_t> ring_wakes_{0};
  std::vector<std::thread> threads_;
};

}  // namespace firn
