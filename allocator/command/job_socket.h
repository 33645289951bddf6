// Queries running processes of Firn by their control sockets. Never waits longer than asked,
// whatever a process does. Owns: nothing. Locks: none.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "firn/result.h"

namespace firn::command {

struct JobAnswer {
  pid_t process = 0;
  nlohmann::ordered_json document;  // null: see `error`
  std::string error;                // in words, without the process
};

/// Asks every process of this user's. Sockets of dead processes are removed.
std::vector<JobAnswer> ask_jobs(const std::string& word, std::chrono::milliseconds patience);

/// Asks one. Errors: invalid_argument (no such process, another user's, not one of Firn's), io (it
/// does not answer, or ended meanwhile).
Result<nlohmann::ordered_json> ask_job(pid_t process, const std::string& word,
                                       std::chrono::milliseconds patience);

/// A job's answer as a document; null if it is none.
nlohmann::ordered_json answer_document(const std::string& text);

/// The process's command line, as it was started; empty if it cannot be read.
std::string job_words(pid_t process);

}  // namespace firn::command
