// A case of process_test.cpp, and what its process tells the worker that started it, in memory that
// both have. One process writes at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "tests/faults/interpose.h"

namespace firn::faults {

inline constexpr const char* stores[] = {"io_uring", "threads", "encrypted"};
inline constexpr const char* whens[] = {"once", "from", "alike"};
inline constexpr uint64_t call_runs_most = 640;
// Of one call of the C API's: the whole process's processor time, which no other job on the machine
// adds to; and the clock's, with what may be waited for (200 ms for who reads stderr, 2 s for
// service threads that a driver holds, a directory's second of rest) beside such others.
inline constexpr double cpu_s_most = 1, s_most = 4;

struct Case {
  unsigned store;
  size_t name;
  When when;
  uint64_t n;
};

/// The process of a case fills this in, and its worker reads it.
struct Report {
  uint32_t job[names_most], end[names_most];  // calls of each name
  uint32_t failures[names_most];
  unsigned errors;
  bool lost, met, trapped, ring;
  char first[200], failed[40];
  double slowest_s, slowest_cpu_s;
  char slowest[40];
  char held[4000];  // beyond what was held before Firn, one a line
};
inline Report* report = nullptr;
inline Report usual[std::size(stores)];

}  // namespace firn::faults
