// A directory of a test's own, away with it. Owns the directory. Locks: none.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace firn::test {

/// Fresh. Aborts where it cannot be made.
class TempDir {
 public:
  /// Under $FIRN_TEST_DIR, else the working directory (a disk, not a tmpfs).
  TempDir() : TempDir(std::getenv("FIRN_TEST_DIR"), std::filesystem::current_path()) {}
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 protected:
  TempDir(const char* parent, const std::filesystem::path& without)
      : path_((parent ? parent : without) / "firn-XXXXXX") {
    if (!::mkdtemp(path_.data())) std::abort();
  }

 private:
  std::string path_;
};

}  // namespace firn::test
