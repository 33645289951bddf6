#include "allocator/record/program_files.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "firn/output_file.h"

namespace firn::record {

namespace {

constexpr size_t buffer_bytes = 1u << 20;

std::string tensors_path(const std::string& prefix) { return prefix + ".tensors.csv"; }
std::string kernels_path(const std::string& prefix) { return prefix + ".kernels.csv"; }
std::string part_of(const std::string& path) { return path + ".part"; }

/// A file that is written front to back; the first error is kept.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    (void)::unlink(path.c_str());
    Result<OutputFile> file = OutputFile::create(path, OutputFile::If::exists_fails);
    if (file)
      file_ = std::move(*file);
    else
      done_ = file.error();
  }

  template <class... Arguments>
  void print(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(buffer_), text, std::forward<Arguments>(arguments)...);
    if (buffer_.size() >= buffer_bytes) flush();
  }

  Result<void> close() {
    flush();
    if (done_) done_ = file_.close();
    return done_;
  }

 private:
  void flush() {
    if (done_) done_ = file_.write(buffer_);
    buffer_.clear();
  }

  OutputFile file_;
  std::string buffer_;
  Result<void> done_;
};

/// Makes a name fit for a field: not every reader of these files understands quotes.
std::string plain(std::string name) {
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return c == ',' || c == '"' || static_cast<unsigned char>(c) < ' '; }, '_');
  return name;
}

Result<void> write_tensors(const Iteration& iteration, const std::string& path) {
  Writer file(path);
  file.print("tensor,bytes,kind\n");
  for (size_t i = 0; i < iteration.tensors.size(); ++i)
    file.print("{},{},{}\n", i, iteration.tensors[i].bytes,
               iteration.tensors[i].persistent ? "persistent" : "transient");
  return file.close();
}

Result<void> write_kernels(const Recording& recording, const Iteration& iteration,
                           const std::string& path) {
  Writer file(path);
  file.print("kernel,name,duration_ns,inputs,outputs\n");
  for (size_t i = 0; i < iteration.kernels.size(); ++i) {
    const Iteration::Kernel& kernel = iteration.kernels[i];
    file.print("{},{},{},", i, plain(recording.name(recording.kernels()[kernel.name])),
               kernel.duration_ns);
    const auto uses = std::span(iteration.uses).subspan(kernel.uses_at);
    const char* separator = "";
    for (uint32_t n = 0; n < kernel.inputs + kernel.outputs; ++n, separator = " ") {
      if (n == kernel.inputs) separator = ",";
      file.print("{}{}", separator, uses[n]);
    }
    file.print("{}\n", kernel.outputs ? "" : ",");
  }
  return file.close();
}

}  // namespace

std::string program_prefix(const std::string& trace_file) {
  constexpr std::string_view ending = ".csv";
  return trace_file.ends_with(ending) ? trace_file.substr(0, trace_file.size() - ending.size())
                                      : trace_file;
}

void remove_program(const std::string& prefix) {
  for (const std::string& path : {tensors_path(prefix), kernels_path(prefix)}) {
    (void)std::remove(path.c_str());
    (void)std::remove(part_of(path).c_str());
  }
}

Result<void> write_program(const Recording& recording, const Iteration& iteration,
                           const std::string& prefix) {
  const std::string tensors = tensors_path(prefix), kernels = kernels_path(prefix);
  Result<void> done = write_tensors(iteration, part_of(tensors));
  if (done) done = write_kernels(recording, iteration, part_of(kernels));
  if (done)
    for (const std::string& path : {tensors, kernels})
      if (done && std::rename(part_of(path).c_str(), path.c_str()) != 0)
        done = make_error(Code::io, errno,
                          fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  if (!done) remove_program(prefix);
  return done;
}

}  // namespace firn::record
