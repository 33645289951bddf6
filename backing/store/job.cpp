#include "backing/store/job.h"
#include "firn/canary.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

namespace firn {

namespace {
constexpr unsigned retries_most = 64;    // EAGAIN, EINTR, or a transfer of nothing useful
constexpr unsigned retries_at_once = 8;  // before waiting a little between them
constexpr unsigned retry_wait_us = 500;
constexpr unsigned attempts_most = 3;  // direct, direct, buffered
}  // namespace

bool Job::buffered() const { return attempt + 1 == attempts_most; }

FileCall call_of(const Transfer& transfer, const ThreadFile& file) {
  const Job& job = *transfer.job;
  const bool buffered = job.buffered();
  size_t at = transfer.begin + transfer.done;
  return {job.write(),     buffered,      file.fd(buffered),
          job.offset + at, job.data + at, transfer.end - at};
}

bool advance(Transfer& transfer, ssize_t result, const SpillFile& file) {
  const Job& job = *transfer.job;
  size_t left = transfer.end - transfer.begin - transfer.done;
  const char* verb = job.write() ? "write" : "read";
  if (result >= 0) {
    auto moved = static_cast<size_t>(result);
    if (moved >= left || (FIRN_CANARY(13) && job.write())) {
      transfer.done += left;
      return false;
    }
    // Direct I/O goes on at an aligned offset only; what came beyond is moved once more.
    moved -= moved % store_alignment;
    transfer.done += moved;
    if (moved > 0) return true;
    if (result == 0 && !job.write()) {
      transfer.error = make_error(Code::io, EIO,
                                  fmt::format("read of {}: the file ends {} bytes too early",
                                              place_words(job, file), left));
      return false;
    }
  } else if (result != -EAGAIN && result != -EINTR) {
    auto error = static_cast<int>(-result);
    transfer.error = make_error(
        code_of(error), error,
        fmt::format("{} of {}: {} (firn_dir)", verb, place_words(job, file), errno_words(error)));
    return false;
  }
  if (++transfer.retries > retries_most) {
    int error = result < 0 ? static_cast<int>(-result) : EIO;
    transfer.error = make_error(
        Code::io, error,
        fmt::format("{} of {}: no progress in {} tries, the last: {}", verb, place_words(job, file),
                    retries_most, result < 0 ? errno_words(error) : "a short transfer"));
    return false;
  }
  if (transfer.retries > retries_at_once) ::usleep(retry_wait_us);
  return true;
}

bool conclude(Job& job, ThreadFile& at) {
  const SpillFile& file = at.file();
  if (job.failed()) return true;
  job.summer.sum_to(job.data, job.bytes);
  Sum found = job.summer.digest();
  if (job.write()) {
    job.sum = found;
    if (FIRN_CANARY(11)) job.sum.low ^= job.slot.id > 1;  // as if of another piece
    return true;
  }
  if (found == job.sum || (FIRN_CANARY(12) && job.attempt + 1 == attempts_most)) return true;
  job.wrong.push_back(found);
  if (job.wrong.size() == attempts_most) {
    job.error = make_error(
        Code::corrupt, 0,
        fmt::format("{} came back wrong: its checksum is {}, but reads gave {} and {} (direct) and "
                    "{} (buffered); Firn withholds the bytes",
                    place_words(job, file), job.sum.words(), job.wrong[0].words(),
                    job.wrong[1].words(), job.wrong[2].words()));
    return true;
  }
  ++job.attempt;
  job.next = 0;
  job.arrived.assign(job.arrived.size(), false);
  job.arrived_prefix = 0;
  job.summer.reset();
  // The buffered read has to come from the disk, not from a page that somehow stayed.
  if (at.reach_errno(true) == 0)
    (void)::posix_fadvise(at.fd(true), static_cast<off_t>(job.offset),
                          static_cast<off_t>(job.bytes), POSIX_FADV_DONTNEED);
  return false;
}

std::string place_words(const Job& job, const SpillFile& file) {
  return fmt::format("slot {} ({} bytes at {} of the spill file in {})", job.slot.id, job.bytes,
                     job.offset, file.dir());
}

Code code_of(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? Code::no_space : Code::io;
}

}  // namespace firn
