// Where the commands' findings go: files that were named, standard output. Owns: nothing.
// Locks: none.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "firn/result.h"

namespace firn::command {

/// The absolute path of `file`, which can be written as it seems. The error names `option`; a
/// symbolic link is one.
Result<std::string> output_path(const char* option, const std::string& file);
/// `text` becomes the file, its owner's alone where it is new (firn/output_file.h). The error names
/// `option`.
Result<void> write_file(const char* option, const std::string& path, const std::string& text);
/// The same, and the file is whole or as before, where it is one and no pipe.
Result<void> write_whole(const char* option, const std::string& path, const std::string& text);
/// All of `text` on standard output.
Result<void> print(const std::string& text);
/// Indented, whatever bytes its strings hold, and a line's end.
std::string dumped(const nlohmann::ordered_json& json);

}  // namespace firn::command
