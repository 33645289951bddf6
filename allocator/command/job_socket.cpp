#include "allocator/command/job_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "allocator/command/report.h"
#include "allocator/runtime/command_line.h"
#include "allocator/runtime/control_folder.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;
using Time = std::chrono::steady_clock::time_point;
constexpr size_t answer_most = 64u << 20;
constexpr size_t nested_most = 32;  // a job's own document: 5

struct Question {
  pid_t process = 0;
  int fd = -1;
  std::string text, error;
};

int left_ms(Time until) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      until - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

/// Reads what has arrived. True when the answer has ended, one way or the other.
bool take(Question& question) {
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::recv(question.fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (got < 0) question.error = std::string("ended while it answered: ") + std::strerror(errno);
    if (got <= 0) return true;
    question.text.append(buffer, static_cast<size_t>(got));
    if (question.text.size() <= answer_most) continue;
    question.error = "sends an endless answer";
    return true;
  }
}

/// Sends the word on every socket and gathers the answers until time is up.
void gather(std::vector<Question>& questions, const std::string& word, Time until,
            std::chrono::milliseconds patience) {
  const std::string line = word + "\n";
  for (Question& question : questions)
    if (::send(question.fd, line.data(), line.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(line.size()))
      question.error = std::string("cannot be asked: ") + std::strerror(errno);
  std::vector<Question*> open;
  for (Question& question : questions)
    if (question.error.empty()) open.push_back(&question);
  while (!open.empty() && left_ms(until) > 0) {
    std::vector<pollfd> polled;
    for (const Question* question : open) polled.push_back({question->fd, POLLIN, 0});
    if (::poll(polled.data(), polled.size(), left_ms(until)) < 0 && errno != EINTR) break;
    for (size_t i = polled.size(); i-- > 0;)
      if (polled[i].revents != 0 && take(*open[i]))
        open.erase(open.begin() + static_cast<ptrdiff_t>(i));
  }
  for (Question* question : open)
    question->error = fmt::format("does not answer within {:.1f} s",
                                  static_cast<double>(patience.count()) / 1000);
  for (Question& question : questions) ::close(question.fd);
}

JobAnswer answer_of(Question& question) {
  JobAnswer answer{question.process, nullptr, std::move(question.error)};
  if (!answer.error.empty()) return answer;
  answer.document = answer_document(question.text);
  if (answer.document.is_null())
    answer.error = question.text.empty() ? "refused to answer" : "answers nonsense";
  return answer;
}

/// The nesting depth of lists and objects, in which the JSON library recurses.
size_t nested(const std::string& text) {
  size_t depth = 0, most = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\')
      ++i;
    else if (c == '"')
      quoted = !quoted;
    else if (!quoted && (c == '[' || c == '{'))
      most = std::max(most, ++depth);
    else if (!quoted && (c == ']' || c == '}') && depth > 0)
      --depth;
  }
  return most;
}

/// Do the members that job_text.cpp reads have their types? A job may be of another version.
bool shaped(const Json& document) {
  if (!document.is_object()) return false;
  for (const char* part : {"store", "stalls"})
    if (const auto found = document.find(part); found != document.end() && !found->is_object())
      return false;
  const auto devices = document.find("devices");
  if (devices == document.end()) return true;
  return devices->is_array() &&
         std::all_of(devices->begin(), devices->end(), [](const Json& device) {
           return device.is_object() &&
                  (!device.contains("watching") || device["watching"].is_boolean());
         });
}

/// Why the process cannot be asked, in words.
std::string why_none(pid_t process) {
  struct stat found{};
  if (::stat(fmt::format("/proc/{}", process).c_str(), &found) != 0)
    return fmt::format("there is no process {}", process);
  if (found.st_uid != ::geteuid()) return fmt::format("process {} is another user's", process);
  return fmt::format("process {} does not use Firn's memory (yet)", process);
}

}  // namespace

Json answer_document(const std::string& text) {
  if (nested(text) > nested_most) return {};
  Json document = Json::parse(text, nullptr, false);
  return shaped(document) ? document : Json();
}

std::string job_words(pid_t process) { return one_line(command_line(process)); }

std::vector<JobAnswer> ask_jobs(const std::string& word, std::chrono::milliseconds patience) {
  const Time until = std::chrono::steady_clock::now() + patience;
  std::vector<Question> questions;
  std::vector<JobAnswer> answers;
  for (const std::string& folder : control_folders()) {
    if (!check_control_folder(folder)) continue;
    for (const pid_t process : control_sockets(folder)) {
      Result<int> fd = connect_control(control_path(folder, process));
      if (fd)
        questions.push_back({process, *fd, {}, {}});
      else if (fd.error().detail == EAGAIN)  // its queue is full: it accepts no caller
        answers.push_back({process, nullptr, "does not answer"});
      else if (fd.error().detail == EPERM || fd.error().detail == EACCES)
        answers.push_back({process, nullptr, fd.error().text});
    }
  }
  gather(questions, word, until, patience);
  for (Question& question : questions) answers.push_back(answer_of(question));
  std::sort(answers.begin(), answers.end(),
            [](const JobAnswer& a, const JobAnswer& b) { return a.process < b.process; });
  return answers;
}

Result<Json> ask_job(pid_t process, const std::string& word, std::chrono::milliseconds patience) {
  const Time until = std::chrono::steady_clock::now() + patience;
  std::vector<Question> questions;
  std::string refused;
  for (const std::string& folder : control_folders()) {
    if (Result<void> mine = check_control_folder(folder); !mine) {
      if (mine.error().code != Code::not_supported) refused = mine.error().text;
      continue;
    }
    Result<int> fd = connect_control(control_path(folder, process));
    if (fd) {
      questions.push_back({process, *fd, {}, {}});
      break;
    }
    if (fd.error().detail == EAGAIN)
      return make_error(Code::io, EAGAIN, fmt::format("process {} does not answer", process));
    if (fd.error().detail != ENOENT && fd.error().detail != ECONNREFUSED)
      refused = fd.error().text;
  }
  if (questions.empty())
    return invalid(why_none(process) + (refused.empty() ? "" : " (" + refused + ")"));
  gather(questions, word, until, patience);
  JobAnswer answer = answer_of(questions.front());
  if (answer.error.empty()) return std::move(answer.document);
  return make_error(Code::io, 0, fmt::format("process {} {}", process, answer.error));
}

}  // namespace firn::command
