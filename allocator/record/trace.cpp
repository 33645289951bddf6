#include "allocator/record/trace.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "firn/said.h"
#include "firn/signals_blocked.h"

namespace firn {

namespace {
// Buffered bytes at which writing begins, and at which the trace is cut off.
constexpr size_t buffer_due = 1u << 16, buffer_most = 64u << 20;
}  // namespace

std::string expand_pid(const std::string& path) {
  std::string out = path;
  for (size_t at; (at = out.find("%p")) != std::string::npos;)
    out.replace(at, 2, std::to_string(::getpid()));
  return out;
}

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path) {
  Result<OutputFile> file = OutputFile::create(expand_pid(path));
  if (!file) return make_error(Code::io, file.error().detail, file.error().text + " (firn_trace)");
  try {
    return std::unique_ptr<TraceWriter>(new TraceWriter(std::move(*file)));
  } catch (const std::system_error& error) {
    return make_error(Code::host_out_of_memory, error.code().value(),
                      std::string("cannot start a thread for the trace (firn_trace): ") +
                          error.what());
  }
}

TraceWriter::TraceWriter(OutputFile file) : file_(std::move(file)) {
  buffer_ = "time_ns,event,device,stream,block,bytes,detail\n";
  SignalsBlocked blocked;
  thread_ = std::thread([this] { write(); });
}

TraceWriter::~TraceWriter() {
  flush();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  due_.notify_all();
  thread_.join();
}

/// The writer thread.
void TraceWriter::write() {
  pthread_setname_np(pthread_self(), "firn-trace");
  std::string text;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    due_.wait(lock, [this] { return stopping_ || asked_ || buffer_.size() >= buffer_due; });
    asked_ = false;
    text.clear();
    text.swap(buffer_);
    leaving_ = text.size();
    lock.unlock();
    const Result<void> done = text.empty() ? Result<void>() : file_.write(text);
    lock.lock();
    done_ += std::exchange(leaving_, 0);
    if (!done) {
      cut_off(done.error().text);
      lock.unlock();
      Said::of_process().write();
      lock.lock();
    }
    written_.notify_all();
  }
}

void TraceWriter::cut_off(const std::string& why) {
  failed_ = true;
  buffer_.clear();
  say("firn: the trace is cut off: " + why + " (firn_trace)");
}

void TraceWriter::row(uint64_t time_ns, std::string_view event, int device, unsigned stream,
                      uint64_t block, uint64_t bytes, std::string_view detail) {
  std::lock_guard lock(mutex_);
  if (failed_) return;
  auto out = std::back_inserter(buffer_);
  fmt::format_to(out, "{},{},{},{},{},{},", time_ns, event, device, stream, block, bytes);
  if (detail.find_first_of(",\"\n\r") == std::string_view::npos) {
    buffer_ += detail;
  } else {
    buffer_ += '"';
    for (const char c : detail) {
      if (c == '"') buffer_ += '"';
      buffer_ += c == '\n' || c == '\r' ? ' ' : c;
    }
    buffer_ += '"';
  }
  buffer_ += '\n';
  if (buffer_.size() >= buffer_most) return cut_off("its disk is slower than the program");
  if (buffer_.size() >= buffer_due) due_.notify_one();
}

unsigned TraceWriter::thread() {
  static std::atomic<unsigned> threads{0};
  static thread_local const unsigned number = ++threads;
  return number;
}

void TraceWriter::flush() {
  std::unique_lock lock(mutex_);
  if (failed_) return;
  asked_ = true;
  due_.notify_all();
  // Rows that others append meanwhile are not waited for.
  const uint64_t until = done_ + leaving_ + buffer_.size();
  written_.wait(lock, [&] { return failed_ || done_ >= until; });
}

}  // namespace firn
