// A directory of a test's own, away with it. Owns the directory. Locks: none.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace firn::test {

/// A fresh directory under $FIRN_TEST_DIR, else the working directory (a disk, not a tmpfs).
class TempDir {
 public:
  TempDir() {
    const char* base = std::getenv("FIRN_TEST_DIR");
    std::string name =
        (base ? std::string(base) : std::filesystem::current_path().string()) + "/firn-XXXXXX";
    if (!::mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

}  // namespace firn::test
