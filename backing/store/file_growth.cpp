// Room in the spill files of FileStoreCore: found, or made by growing a file. One thread of the
// store's own grows files, with a table of descriptors in which no other thread can close the
// file's: a length is never set on a file of the program's.
#include <pthread.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "backing/store/file_store.h"
#include "firn/said.h"
#include "firn/signals_blocked.h"
#include "firn/slow_work.h"

namespace firn {

namespace {
constexpr uint64_t grow_wait_ns = 1'000'000'000;  // between tries on a disk that was full
}  // namespace

Result<uint64_t> FileStoreCore::find_room(Dir& dir, size_t bytes, bool wait,
                                          std::unique_lock<RankedMutex<Rank::store>>& lock) {
  while (true) {
    if (std::optional<uint64_t> offset = dir.free.take(bytes)) return *offset;
    if (!wait) {
      Error asked = ask_for_room(dir, bytes);
      if (asked.code != Code::ok) return asked;
    }
    ThreadFile by_number(dir.file);
    Result<void> grown = wait && start_growing() ? wait_for_room(dir, bytes, lock)
                                                 : grow(dir, by_number, bytes, lock);
    if (!grown) return grown.error();
  }
}

/// False: there is no such thread, and the caller has to do it.
bool FileStoreCore::start_growing() {
  if (growing_started_) return true;
  try {
    SlowWorks::of_process().start();  // by a thread that has stderr
    SignalsBlocked blocked;
    growing_ = std::thread([this] { keep_growing(); });
    growing_started_ = true;
  } catch (const std::system_error&) {
  }
  return growing_started_;
}

Result<void> FileStoreCore::wait_for_room(Dir& dir, size_t bytes,
                                          std::unique_lock<RankedMutex<Rank::store>>& lock) {
  const uint64_t tries = dir.grow_tries;
  dir.asked_bytes = std::max(dir.asked_bytes, bytes);
  grow_due_.notify_one();
  grow_tried_.wait(lock, [&] { return dir.grow_tries > tries || stopping_; });
  if (stopping_) return make_error(Code::cancelled, 0, "the store is being closed");
  // A larger request that failed says nothing about this one.
  return dir.grown || dir.tried_bytes > bytes ? Result<void>() : dir.grown;
}

Error FileStoreCore::ask_for_room(Dir& dir, size_t bytes) {
  const uint64_t now = clock_.now_ns();
  if (now < dir.grow_again_ns || (now < dir.grow_ask_ns && bytes >= dir.refused_bytes))
    return make_error(Code::no_space, 0, dir.trouble);
  if (!start_growing()) return {};  // then by the caller
  dir.asked_bytes = std::max(dir.asked_bytes, bytes);
  grow_due_.notify_one();
  return make_error(Code::busy, 0, dir.file.dir() + ": the spill file is growing");
}

/// The growing thread.
void FileStoreCore::keep_growing() {
  pthread_setname_np(pthread_self(), "firn-grow");
  try {
    (void)ThreadFile::take_table(growing_files_, calls_);  // (I/O threads say why there is none)
  } catch (const std::bad_alloc&) {  // by the process's numbers, then
  }
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    bool any = false;
    for (size_t i = 0; i < dirs_.size(); ++i) {
      Dir* const dir = dirs_[i].get();
      const size_t bytes = std::exchange(dir->asked_bytes, 0);
      if (bytes == 0 || stopping_) continue;
      any = true;
      Result<void> grown;
      try {
        grown = grow(*dir, growing_files_[i], bytes, lock);
      } catch (const std::bad_alloc&) {  // no room now: a later request finds out
        if (!lock.owns_lock()) lock.lock();
        grown = make_error(Code::io, ENOMEM, "no memory");  // (short: it takes none)
      }
      dir->grown = std::move(grown);
      dir->tried_bytes = bytes;
      ++dir->grow_tries;
      grow_tried_.notify_all();
      if (dir->grown) continue;
      dir->refused_bytes = bytes;
      dir->grow_ask_ns = clock_.now_ns() + grow_wait_ns;
    }
    if (any) {
      lock.unlock();
      clock_.notify();
      lock.lock();
    } else {
      grow_due_.wait(lock);
    }
  }
  growing_files_.clear();  // by this thread, whose table has them
}

/// After success there may still be no room: others took it. The caller looks again.
Result<void> FileStoreCore::grow(Dir& dir, ThreadFile& at, size_t bytes,
                                 std::unique_lock<RankedMutex<Rank::store>>& lock) {
  lock.unlock();
  std::lock_guard one_at_a_time(dir.grow_mutex);
  uint64_t now = clock_.now_ns();
  uint64_t ours_most = options_.max_bytes_per_dir;
  if (ours_most != SIZE_MAX) ours_most /= dir.in_dir.count();
  uint64_t limit = std::min<uint64_t>(calls_.file_bytes_max(), ours_most);
  limit -= limit % store_alignment;
  lock.lock();
  if (dir.free.largest() >= bytes) return {};  // grown meanwhile
  if (now < dir.grow_again_ns) return make_error(Code::no_space, 0, dir.trouble);
  uint64_t need = bytes - dir.free.tail(dir.file_bytes);
  uint64_t left = limit > dir.file_bytes ? limit - dir.file_bytes : 0;
  if (need > left) {
    bool ours = limit + store_alignment > ours_most;
    dir.trouble = fmt::format("{}: the spill file of {} bytes cannot grow by {}: {}",
                              dir.file.dir(), dir.file_bytes, need,
                              ours ? "firn_store_size is reached"
                                   : "the limit on file sizes (RLIMIT_FSIZE, "
                                     "ulimit -f) is reached");
    return make_error(Code::no_space, 0, dir.trouble);
  }
  uint64_t step = std::min(std::max<uint64_t>(options_.grow_bytes, need), left);
  const uint64_t so_far = dir.file_bytes;
  lock.unlock();
  Result<uint64_t> grown = uint64_t{0};
  {
    SlowWork work(SlowWorks::Kind::layout, [&dir, so_far] {
      return fmt::format("preallocating the spill file in {} ({} MiB exist; firn_dir)",
                         dir.file.dir(), so_far >> 20);
    });
    grown = dir.file.grow(at, step, need, calls_);
  }
  lock.lock();
  dir.why = dir.file.why();
  if (!grown && grown.error().code == Code::lost) {
    if (const std::string words = closed(dir, grown.error()); !words.empty()) say("firn: " + words);
    return make_error(Code::no_space, 0, dir.trouble);
  }
  if (!grown) {
    // Room laid out before stays in use: a full disk cannot fail its writes.
    dir.trouble = grown.error().text;
    dir.grow_again_ns = now + grow_wait_ns;
    if (grown.error().code == Code::io) (void)dir.health.failed(now);
    return grown.error();
  }
  // With room laid out before, when there was no memory to note it.
  const uint64_t added = dir.file.bytes() - dir.file_bytes;
  dir.free.add(dir.file_bytes, added, true);
  dir.file_bytes += added;
  if (dir.writable && !dir.health.distrusted()) dir.trouble.clear();
  return {};
}

/// If its I/O threads have the file by themselves, the room laid out stays in use.
std::string FileStoreCore::closed(Dir& dir, const Error& error) {
  const bool reached = dir.io->has_file();
  dir.trouble = error.text;
  dir.trouble += reached ? ": the spill file stops growing"
                      : ": the data spilled there is lost, and Firn stops using the directory";
  dir.grow_again_ns = UINT64_MAX;
  if (!reached) dir.writable = false;
  return std::exchange(dir.closed, true) ? std::string() : dir.trouble;
}

}  // namespace firn
