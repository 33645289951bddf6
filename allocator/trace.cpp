#include "allocator/trace.h"

#include <unistd.h>

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
  fmt::format_to(std::back_inserter(buffer_), "{},{},{},{},{},{},{}\n", time_ns, event, device,
                 stream, block, bytes, detail);
  if (buffer_.size() < (1u << 16)) return;
  if (std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size() && !failed_) {
    failed_ = true;
    std::fprintf(stderr, "firn: the trace is cut off: %s (firn_trace)\n", std::strerror(errno));
  }
  buffer_.clear();
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
