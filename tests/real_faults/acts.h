// What a job does to itself while its I/O is in flight, as programs do: children, other programs in
// its place, descriptors closed that it did not open, limits lowered, system calls forbidden.
// Owns what it used up, until told to give it back. Locks: none; one thread.
#pragma once

#include <string>
#include <vector>

namespace firn::real_faults {

/// Does it, and answers what to print: "ok ..." or "cannot ...". Empty: no such act. Some do not
/// come back; they print their answer themselves. `requests` in flight are told with it.
std::string act(const std::vector<std::string>& words, const std::string& requests);

/// How many requests to the disk that holds `folder` are in flight just now; empty: not known.
std::string in_flight(const std::string& folder);

}  // namespace firn::real_faults
