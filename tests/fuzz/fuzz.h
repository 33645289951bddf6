// What the fuzz targets share: an oracle's check, bytes drawn from an input, texts of several files
// in one input, a folder for files, and what every error's text has to be.
// Owns: a folder for each Folder, under TMPDIR. Locks: none.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "tests/temp_dir.h"

/// An oracle: where the condition fails the fuzzer keeps the input.
#define FUZZ_CHECK(condition, ...)                                                            \
  do {                                                                                        \
    if (!(condition)) [[unlikely]] {                                                          \
      std::fprintf(stderr, "fuzz: %s:%d: broken: %s: ", __FILE__, __LINE__, #condition);      \
      std::fprintf(stderr, __VA_ARGS__);                                                      \
      std::fputc('\n', stderr);                                                               \
      std::abort();                                                                           \
    }                                                                                         \
  } while (0)

namespace firn::fuzz {

__extension__ typedef unsigned __int128 Wide;

/// Numbers and bytes from the front of an input; zeroes when it has no more.
class Draw {
 public:
  Draw(const uint8_t* data, size_t size) : at_(data), left_(size) {}
  template <class T>
  T number() {
    T value{};
    const size_t bytes = std::min(sizeof value, left_);
    std::memcpy(&value, at_, bytes);
    skip(bytes);
    return value;
  }
  /// From 0 to most.
  unsigned upto(unsigned most) { return number<uint8_t>() % (most + 1); }
  std::string bytes(size_t most) {
    const size_t size = std::min(most, left_);
    std::string drawn(reinterpret_cast<const char*>(at_), size);
    skip(size);
    return drawn;
  }
  std::string rest() { return bytes(left_); }
  bool empty() const { return left_ == 0; }

 private:
  void skip(size_t bytes) {
    at_ += bytes;
    left_ -= bytes;
  }
  const uint8_t* at_;
  size_t left_;
};

/// An input that stands for several texts: a line "== NAME" begins each. What is before the first
/// such line is the text without a name.
inline std::map<std::string, std::string> texts_of(const uint8_t* data, size_t size) {
  std::map<std::string, std::string> texts;
  std::string* text = &texts[""];
  std::string_view left(reinterpret_cast<const char*>(data), size);
  while (!left.empty()) {
    const size_t end = std::min(left.find('\n'), left.size() - 1) + 1;
    std::string_view line = left.substr(0, end);
    left.remove_prefix(end);
    if (!line.starts_with("== ")) {
      text->append(line);
      continue;
    }
    line.remove_prefix(3);
    if (line.ends_with('\n')) line.remove_suffix(1);
    text = &texts[std::string(line)];
  }
  return texts;
}

/// A folder that is removed at the end of the process. (A crash leaves it: run.sh gives a TMPDIR that
/// it removes.)
class Folder : public test::TempDir {
 public:
  Folder() : TempDir(std::getenv("TMPDIR"), "/tmp") {}

  /// Returns the file's path.
  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = this->path() + "/" + name;
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0, "%s cannot be written", path.c_str());
    for (size_t at = 0; at < text.size();) {
      const ssize_t put = ::write(fd, text.data() + at, text.size() - at);
      FUZZ_CHECK(put > 0, "%s cannot be written", path.c_str());
      at += static_cast<size_t>(put);
    }
    ::close(fd);
    return path;
  }
  std::string make(const std::string& name) const {
    std::filesystem::create_directories(path() + "/" + name);
    return path() + "/" + name;
  }
};

/// One line that can be read, of a bounded length.
inline void check_words(const std::string& text) {
  FUZZ_CHECK(!text.empty() && text.size() < 2000, "%zu bytes of error", text.size());
  for (const char c : text)
    FUZZ_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "control character %d in: %s", c,
               text.c_str());
}

/// Of a bad file: "FILE:LINE: words", or "FILE: words" where no line is to blame. The line is one
/// of the file's, or the one after its last.
inline void check_file_error(const std::string& text,
                             std::initializer_list<std::pair<std::string, std::string>> files) {
  check_words(text);
  for (const auto& [path, content] : files) {
    if (!text.starts_with(path + ":")) continue;
    const char* line = text.c_str() + path.size() + 1;
    if (*line == ' ') return;
    char* end = nullptr;
    const unsigned long number = std::strtoul(line, &end, 10);
    FUZZ_CHECK(end != line && *end == ':', "no line is named: %s", text.c_str());
    const auto lines = static_cast<size_t>(std::count(content.begin(), content.end(), '\n')) + 1;
    FUZZ_CHECK(number >= 1 && number <= lines, "of %zu lines: %s", lines, text.c_str());
    return;
  }
  FUZZ_CHECK(false, "no file is named: %s", text.c_str());
}

}  // namespace firn::fuzz
