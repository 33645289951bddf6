#include "allocator/trace.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

namespace firn {

std::string expand_pid(const std::string& path) {
  std::string out = path;
  for (size_t at; (at = out.find("%p")) != std::string::npos;)
    out.replace(at, 2, std::to_string(::getpid()));
  return out;
}

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path) {
  std::string name = expand_pid(path);
  std::FILE* file = std::fopen(name.c_str(), "we");
  if (!file)
    return make_error(Code::io, errno, "cannot write the trace file " + name + ": " +
                                           std::strerror(errno) + " (firn_trace)");
  std::unique_ptr<TraceWriter> writer(new TraceWriter(file));
  writer->buffer_ = "time_ns,event,device,stream,block,bytes,detail\n";
  return writer;
}

TraceWriter::~TraceWriter() {
  flush();
  std::fclose(file_);
}

void TraceWriter::row(uint64_t time_ns, std::string_view event, int device, unsigned stream,
                      uint64_t block, uint64_t bytes, std::string_view detail) {
  std::lock_guard lock(mutex_);
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
  if (buffer_.size() < (1u << 16)) return;
  // Once cut off nothing more is written: it would begin within a row.
  if (!failed_ && std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size()) {
    failed_ = true;
    std::fprintf(stderr, "firn: the trace is cut off: %s (firn_trace)\n", std::strerror(errno));
  }
  buffer_.clear();
}

unsigned TraceWriter::thread() {
  static std::atomic<unsigned> threads{0};
  static thread_local const unsigned number = ++threads;
  return number;
}

void TraceWriter::flush() {
  std::lock_guard lock(mutex_);
  if (!failed_ && !buffer_.empty() &&
      std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size())
    failed_ = true;
  buffer_.clear();
  if (std::fflush(file_) != 0) failed_ = true;
}

}  // namespace firn
