// One write or read of a slot on its way: cut into transfers, each continued until the kernel has
// moved all of it, summed, and for a read verified, by another path when the sum is wrong. Owned by
// the directory's DirIo from submission to its end. Locks: the counters and the error are guarded
// by DirIo's mutex; the summer belongs to one thread at a time, as noted at each use.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "backing/store/file_calls.h"
#include "backing/store/spill_file.h"
#include "backing/store/sum.h"
#include "firn/store.h"

namespace firn {

struct Job {
  // As submitted.
  StoreCompletion::Kind kind = StoreCompletion::Kind::write;
  unsigned queue = 0;
  uint64_t tag = 0;
  Slot slot;
  std::byte* data = nullptr;
  size_t bytes = 0;
  uint64_t offset = 0;  // of the slot in its file
  uint64_t submitted_ns = 0;
  bool was_filled = false;  // write: what the slot held before stays readable when it is withdrawn
  Sum sum;                  // write: of the bytes, once done; read: what it has to be
  std::list<StoreCompletion> completion{};  // one: to be handed over without taking memory

  // Under way.
  bool begun = false;
  size_t next = 0;            // begin of the first transfer not taken yet
  unsigned in_flight = 0;     // transfers
  unsigned attempt = 0;       // read: 0, then 1 (direct again) and 2 (buffered) after wrong sums
  std::vector<bool> arrived;  // transfers done, by number
  size_t arrived_prefix = 0;  // bytes [0, arrived_prefix) are there
  Summer summer;
  std::vector<Sum> wrong;  // sums found, one per attempt
  Error error;

  bool write() const { return kind == StoreCompletion::Kind::write; }
  bool failed() const { return error.code != Code::ok; }
  bool buffered() const;  // by its last attempt
};

/// Part of a job: bytes [begin, end) of its slot.
struct Transfer {
  Job* job = nullptr;
  size_t begin = 0, end = 0;
  size_t done = 0;       // bytes of it that the kernel has moved
  unsigned retries = 0;  // without progress
  Error error;
};

/// The call that moves what is left of the transfer.
FileCall call_of(const Transfer& transfer, const ThreadFile& file);

/// Takes a call's result in: true when the transfer goes on (short, EAGAIN, EINTR; bounded), false
/// when it is over, transfer.error saying how.
bool advance(Transfer& transfer, ssize_t result, const SpillFile& file);

/// After a job's last transfer, by the one thread that saw it end. True: the job is over, job.error
/// saying how. False: a read whose sum was wrong is to be read again, from its begin.
bool conclude(Job& job, ThreadFile& at);

/// "slot 7 (8388608 bytes at 16777216 of the spill file in /nvme0)"
std::string place_words(const Job& job, const SpillFile& file);

/// no_space for ENOSPC, EDQUOT, EFBIG; else io.
Code code_of(int error);

}  // namespace firn
