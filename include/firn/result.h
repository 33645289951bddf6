// Errors as values: Result<T> is a T or an Error; nothing in Firn below the front ends throws.
// Owns: nothing. Locks: none.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <utility>
#include <variant>

namespace firn {

enum class Code : uint8_t {
  ok,
  invalid_argument,   // the caller's mistake: foreign pointer, double free, malformed knob
  out_of_memory,      // the device budget cannot hold what was asked for, after every reclaim
  host_out_of_memory, // no pinned host memory (host tier exhausted, registration refused)
  driver,             // a driver entry point answered an error; detail is the CUresult
  io,                 // EIO and friends; detail is the errno
  no_space,           // ENOSPC, EDQUOT, EFBIG: the spill files cannot grow; detail is the errno
  corrupt,            // checksum mismatch after re-reads by another path
  not_supported,      // refused by this machine (io_uring, O_DIRECT, a missing driver entry)
  cancelled,          // withdrawn before it began
  lost,               // the block's last good copy could not be read back, or is gone
  busy,               // not now, but under way: ask again
};

const char* code_name(Code code);

struct Error {
  Code code = Code::ok;
  int detail = 0;  // errno, or CUresult when code == driver
  std::source_location where = std::source_location::current();
  std::string text;  // what happened, to which block or file, and which knob changes it
};

/// "text (code, detail, file:line)" on one line.
std::string describe(const Error& error);

inline Error make_error(Code code, int detail, std::string text,
                        std::source_location where = std::source_location::current()) {
  return Error{code, detail, where, std::move(text)};
}

/// The caller's mistake, or the user's.
inline Error invalid(std::string text,
                     std::source_location where = std::source_location::current()) {
  return make_error(Code::invalid_argument, 0, std::move(text), where);
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT: implicit by design
  Result(Error error) : state_(std::move(error)) {}    // NOLINT
  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  Error& error() { return std::get<1>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT
  explicit operator bool() const { return error_.code == Code::ok; }
  const Error& error() const { return error_; }

 private:
  Error error_{};
};

}  // namespace firn
