// Locks: none.
#include "allocator/command/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "allocator/command/report.h"
#include "allocator/config.h"
#include "allocator/json_text.h"

namespace firn::command {

Result<std::string> output_path(const char* option, const std::string& file) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(file, error);
  if (file.empty() || error)
    return bad(fmt::format("{} {}: is no file's name", option, quote_word(file)));
  if (std::filesystem::is_directory(path, error))
    return bad(fmt::format("{} {}: is a directory", option, quote_word(file)));
  if (::access(path.parent_path().c_str(), W_OK) != 0)
    return bad(fmt::format("{} {}: cannot write in {}: {}", option, quote_word(file),
                           path.parent_path().string(), std::strerror(errno)));
  return path.string();
}

Result<void> write_file(const char* option, const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc | std::ios::binary);
  out << text;
  out.close();
  if (out) return {};
  return make_error(Code::io, errno, fmt::format("{} {}: {}", option, path, std::strerror(errno)));
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
