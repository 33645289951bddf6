// Locks: none.
#include "allocator/command/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "allocator/base/json_text.h"
#include "allocator/command/report.h"
#include "allocator/runtime/config.h"
#include "firn/output_file.h"

namespace firn::command {

namespace {
/// /dev/stdout and its like do not count: they are links to what the process has open.
bool is_link(const std::filesystem::path& path) {
  std::error_code error;
  return path.parent_path() != "/dev" && path.parent_path() != "/dev/fd" &&
         std::filesystem::is_symlink(path, error);
}

Error named(const char* option, Error error) {
  error.text = fmt::format("{}: {}", option, error.text);
  return error;
}
}  // namespace

Result<std::string> output_path(const char* option, const std::string& file) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(file, error);
  if (file.empty() || error)
    return invalid(fmt::format("{} {}: is not a file name", option, quote_word(file)));
  if (std::filesystem::is_directory(path, error))
    return invalid(fmt::format("{} {}: is a directory", option, quote_word(file)));
  if (is_link(path))  // reported before the work is done
    return invalid(fmt::format("{} {}: is a symbolic link, which is not followed", option,
                               quote_word(file)));
  if (::access(path.parent_path().c_str(), W_OK) != 0)
    return invalid(fmt::format("{} {}: cannot write in {}: {}", option, quote_word(file),
                               path.parent_path().string(), std::strerror(errno)));
  return path.string();
}

Result<void> write_file(const char* option, const std::string& path, const std::string& text) {
  Result<OutputFile> file = OutputFile::create(path);
  Result<void> done = file ? file->write(text) : Result<void>(file.error());
  if (done) done = file->close();
  if (!done) return named(option, done.error());
  return {};
}

Result<void> write_whole(const char* option, const std::string& path, const std::string& text) {
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::symlink_status(path, error);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    return write_file(option, path, text);  // a pipe, a device, or a link, which is refused
  Result<void> done = replace_file(path, text);
  if (!done) return named(option, done.error());
  return {};
}

Result<void> print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return {};
  return make_error(Code::io, errno, fmt::format("standard output: {}", std::strerror(errno)));
}

std::string dumped(const nlohmann::ordered_json& json) {
  return json_text(json, 2) + "\n";
}

}  // namespace firn::command
