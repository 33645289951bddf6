// Output of the commands' results: to named files, to standard output. Owns: nothing.
// Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "firn/result.h"

namespace firn::command {

/// The absolute path of `file`, which seems writable. The error names `option`; a symbolic link is
/// an error.
Result<std::string> output_path(const char* option, const std::string& file);
/// Writes `text` to the file; a new file is its owner's alone (firn/output_file.h). The error names
/// `option`.
Result<void> write_file(const char* option, const std::string& path, const std::string& text);
/// The same, but a regular file is replaced as a whole or stays as before.
Result<void> write_whole(const char* option, const std::string& path, const std::string& text);
/// All of `text` on standard output.
Result<void> print(const std::string& text);
/// Indented JSON and a line's end, whatever bytes its strings hold.
std::string dumped(const nlohmann::ordered_json& json);

}  // namespace firn::command
